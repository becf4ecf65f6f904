use super::super::cast::{cast_row_fp8, cast_row_scalar, scale_row_bytes, ScaleKind};
use super::super::convert::RowType;
use super::{Format, Random, Row, BF16, E4M3, FP16};

const KINDS: [ScaleKind; 3] = [ScaleKind::Fp32, ScaleKind::Fp32Pow2, ScaleKind::Ue8m0Packed];
const TYPES: [RowType; 3] = [RowType::Bf16, RowType::Fp16, RowType::Fp32];

struct Cast {
    codes: Vec<u8>,
    scales: Vec<u8>,
}

/// Casts by both versions and insists that they agree and stay inside their outputs.
fn cast(content: &[u8], ty: RowType, kind: ScaleKind) -> Cast {
    let hidden = content.len() / ty.bytes();
    let src = Row::of(content, 16);
    let mut results = [true, false].map(|public| {
        let mut codes = Row::new(hidden, 16);
        let mut scales = Row::new(scale_row_bytes(kind, hidden), 16);
        let call = if public { cast_row_fp8 } else { cast_row_scalar };
        // SAFETY: the rows have the sizes the cast asks for.
        unsafe { call(src.ptr(), ty, hidden, kind, codes.ptr_mut(), scales.ptr_mut()) };
        assert!(codes.surroundings_untouched() && scales.surroundings_untouched());
        Cast { codes: codes.bytes().to_vec(), scales: scales.bytes().to_vec() }
    });
    assert!(results[0].codes == results[1].codes, "{ty:?} {kind:?} hidden {hidden}");
    assert!(results[0].scales == results[1].scales, "{ty:?} {kind:?} hidden {hidden}");
    let [first, _] = &mut results;
    Cast { codes: std::mem::take(&mut first.codes), scales: std::mem::take(&mut first.scales) }
}

fn cast_f32(values: &[f32], kind: ScaleKind) -> Cast {
    let content: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    cast(&content, RowType::Fp32, kind)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The elements of a row by the textbook formula.
fn elements(content: &[u8], ty: RowType) -> Vec<f32> {
    let half = |format: Format, code: u16| {
        let infinity = ((1 << format.exponent) - 1) << format.mantissa;
        let magnitude = u32::from(code & 0x7FFF);
        let value = match magnitude.cmp(&infinity) {
            std::cmp::Ordering::Less => format.value(magnitude) as f32,
            std::cmp::Ordering::Equal => f32::INFINITY,
            std::cmp::Ordering::Greater => f32::NAN,
        };
        if code & 0x8000 != 0 {
            -value
        } else {
            value
        }
    };
    match ty {
        RowType::Fp32 => floats(content),
        _ => {
            let format = if ty == RowType::Bf16 { BF16 } else { FP16 };
            content.chunks(2).map(|b| half(format, u16::from_le_bytes([b[0], b[1]]))).collect()
        }
    }
}

/// `f32` multiplication and division are correctly rounded, and so are these: 53 bits suffice for both.
fn times(a: f32, b: f32) -> f32 {
    (f64::from(a) * f64::from(b)) as f32
}

/// The cast again, from its definition, with exponents by comparison and codes by bisection.
fn reference(values: &[f32], kind: ScaleKind) -> Cast {
    let mut result = Cast { codes: vec![], scales: vec![] };
    for block in values.chunks(128) {
        let amax = block.iter().filter(|x| x.is_finite()).fold(1e-4f32, |a, x| a.max(x.abs()));
        let mut scale = times(amax, (1.0f64 / 448.0) as f32);
        let mut factor = (448.0 / f64::from(amax)) as f32;
        if kind != ScaleKind::Fp32 {
            let exponent = (-126..128).find(|&e| f64::from(scale) <= 2f64.powi(e)).unwrap();
            scale = 2f64.powi(exponent) as f32;
            factor = 2f64.powi(-exponent) as f32;
            if kind == ScaleKind::Ue8m0Packed {
                result.scales.push((exponent + 127) as u8);
            }
        }
        if kind != ScaleKind::Ue8m0Packed {
            result.scales.extend(scale.to_le_bytes());
        }
        for &x in block {
            let scaled = times(x, factor);
            let sign = u8::from(x.is_sign_negative()) << 7;
            result.codes.push(match scaled {
                _ if x.is_nan() => 0x7F,
                _ if scaled.is_infinite() => sign | 0x7E,
                _ => sign | E4M3.nearest(f64::from(scaled.abs()), 0x7E) as u8,
            });
        }
    }
    while !result.scales.len().is_multiple_of(4) {
        result.scales.push(0);
    }
    result
}

fn check(content: &[u8], ty: RowType) {
    for kind in KINDS {
        let (got, expected) = (cast(content, ty, kind), reference(&elements(content, ty), kind));
        assert!(got.scales == expected.scales, "{ty:?} {kind:?}");
        assert!(got.codes == expected.codes, "{ty:?} {kind:?}");
    }
}

#[test]
fn every_half_in_blocks_of_neighbours_and_of_strangers() {
    for ty in [RowType::Bf16, RowType::Fp16] {
        let neighbours: Vec<u8> = (0..=u16::MAX).flat_map(|code| code.to_le_bytes()).collect();
        let strangers: Vec<u8> =
            (0..=u16::MAX).flat_map(|code| code.wrapping_mul(40503).to_le_bytes()).collect();
        check(&neighbours, ty);
        check(&strangers, ty);
    }
}

#[test]
fn random_rows_of_odd_sizes() {
    let mut random = Random::new(4);
    for ty in TYPES {
        for hidden in [8, 24, 128, 136, 200, 2880, 7168] {
            check(&random.bytes(hidden * ty.bytes()), ty);
            // Values of similar size, as in practice: all of the eight bits get used.
            let tame: Vec<f32> = (0..hidden).map(|_| random.below(20_000) as f32 / 1e4 - 1.0).collect();
            let content: Vec<u8> = match ty {
                RowType::Fp32 => tame.iter().flat_map(|x| x.to_le_bytes()).collect(),
                RowType::Bf16 => {
                    tame.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
                }
                RowType::Fp16 => {
                    (0..hidden).flat_map(|_| (random.below(0x7C00) as u16).to_le_bytes()).collect()
                }
            };
            check(&content, ty);
        }
    }
}

#[test]
fn the_largest_value_gets_the_largest_code() {
    for amax in [1e-4, 1e-3, 1.0, 3.0, 448.0, 1e10, 3.3e38, f32::MAX] {
        for sign in [1.0, -1.0] {
            let mut block = [0.0; 128];
            block[77] = amax * sign;
            let got = cast_f32(&block, ScaleKind::Fp32);
            assert_eq!(got.codes[77], if sign > 0.0 { 0x7E } else { 0xFE }, "{amax}");
            let scale = floats(&got.scales)[0];
            assert!((f64::from(scale) * 448.0 / f64::from(amax) - 1.0).abs() < 2e-7);
        }
    }
    // A power of two leaves up to half of the range unused, never more, and never saturates a finite value.
    for amax in [1e-4f32, 1e-3, 1.0, 448.0, 449.0, 3.3e38] {
        let mut block = [0.0; 128];
        block[5] = amax;
        let got = cast_f32(&block, ScaleKind::Fp32Pow2);
        let scaled = f64::from(amax) / f64::from(floats(&got.scales)[0]);
        assert!(scaled > 223.99 && scaled <= 448.0001, "{amax} {scaled}");
        assert_eq!(u32::from(got.codes[5]), E4M3.nearest(scaled, 0x7E));
        let packed = cast_f32(&block, ScaleKind::Ue8m0Packed);
        assert_eq!(packed.codes, got.codes);
        assert_eq!(u32::from(packed.scales[0]) << 23, floats(&got.scales)[0].to_bits());
        assert_eq!(packed.scales[1..], [0, 0, 0]);
    }
    assert_eq!(floats(&cast_f32(&[448.0; 128], ScaleKind::Fp32Pow2).scales), [1.0]);
    assert_eq!(floats(&cast_f32(&[449.0; 128], ScaleKind::Fp32Pow2).scales), [2.0]);
}

#[test]
fn exponents_turn_at_the_right_value() {
    for power in [-20, -3, 0, 1, 60] {
        let turn = 448.0 * 2f32.powi(power);
        for bits in turn.to_bits() - 4..=turn.to_bits() + 4 {
            check(&[f32::from_bits(bits).to_le_bytes(); 8].concat(), RowType::Fp32);
        }
    }
}

#[test]
fn zeros_have_a_usable_scale() {
    for kind in KINDS {
        let got = cast_f32(&[0.0; 256], kind);
        assert_eq!(got.codes, [0; 256]);
        if kind == ScaleKind::Ue8m0Packed {
            assert_eq!(got.scales, [105, 105, 0, 0]); // 2^-22 is the power of two above 1e-4 / 448
        } else {
            assert!(floats(&got.scales).iter().all(|&scale| scale > 0.0 && scale < 1e-6));
        }
    }
}

#[test]
fn what_is_not_finite_has_no_say_in_the_scale() {
    for kind in KINDS {
        let mut block = [0.5; 128];
        let plain = cast_f32(&block, kind);
        block[3] = f32::INFINITY;
        block[40] = f32::NEG_INFINITY;
        block[127] = -f32::NAN;
        let got = cast_f32(&block, kind);
        assert_eq!(got.scales, plain.scales);
        assert_eq!((got.codes[3], got.codes[40], got.codes[127]), (0x7E, 0xFE, 0x7F));
        assert_eq!(got.codes[4..40], plain.codes[4..40]);
        let alone = cast_f32(&[f32::INFINITY; 128], kind);
        assert_eq!(alone.scales, cast_f32(&[0.0; 128], kind).scales);
        assert_eq!(alone.codes, [0x7E; 128]);
    }
}
