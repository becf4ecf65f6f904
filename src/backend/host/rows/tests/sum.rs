use super::super::convert::RowType;
use super::super::sum::{sum_range_scalar, sum_row, Term};
use super::super::{copy_fence, Stream};
use super::{Random, Row, BF16, FP16};

const TYPES: [RowType; 3] = [RowType::Bf16, RowType::Fp16, RowType::Fp32];
const SIZES: [usize; 6] = [8, 24, 64, 136, 2880, 7168];

/// Sums by the scalar version and by the public one with either kind of store; all must agree to the byte.
fn sum(rows: &[Row], weights: &[Option<f32>], bias: [Option<&Row>; 2], ty: RowType) -> Vec<u8> {
    let bytes = rows.first().or(bias[0]).or(bias[1]).unwrap().bytes().len();
    let hidden = bytes / ty.bytes();
    let terms: Vec<Term> =
        rows.iter().zip(weights).map(|(row, &weight)| Term { row: row.ptr(), weight }).collect();
    let bias = bias.map(|row| row.map(Row::ptr));
    let mut plain = Row::new(bytes, 0);
    // SAFETY: all rows have `hidden` elements.
    unsafe { sum_range_scalar(&terms, bias, ty, 0..hidden, plain.ptr_mut()) };
    for stream in [Stream::Cached, Stream::Past] {
        for offset in [0, 16, 32, 48] {
            let mut out = Row::new(bytes, offset);
            // SAFETY: all rows have `hidden` elements.
            unsafe { sum_row(&terms, bias, ty, hidden, out.ptr_mut(), stream) };
            copy_fence();
            assert!(out.bytes() == plain.bytes(), "{ty:?} hidden {hidden} {stream:?} offset {offset}");
            assert!(out.surroundings_untouched());
        }
    }
    plain.bytes().to_vec()
}

fn row_f32(values: &[f32]) -> Row {
    Row::of(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(), 16)
}

fn row_u16(codes: &[u16]) -> Row {
    Row::of(&codes.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(), 16)
}

/// The first element of the sum of rows that hold one value each.
fn one_f32(values: &[f32], weights: &[Option<f32>], bias: [Option<f32>; 2]) -> u32 {
    let rows: Vec<Row> = values.iter().map(|&x| row_f32(&[x; 24])).collect();
    let bias = bias.map(|x| x.map(|x| row_f32(&[x; 24])));
    let got = sum(&rows, weights, [bias[0].as_ref(), bias[1].as_ref()], RowType::Fp32);
    let words: Vec<u32> = got.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert!(words.iter().all(|&word| word == words[0]));
    words[0]
}

fn one_bf16(codes: &[u16]) -> u16 {
    let rows: Vec<Row> = codes.iter().map(|&x| row_u16(&[x; 24])).collect();
    let got = sum(&rows, &vec![None; codes.len()], [None, None], RowType::Bf16);
    u16::from_le_bytes([got[0], got[1]])
}

#[test]
fn random_bits_agree_between_versions() {
    let mut random = Random::new(5);
    for ty in TYPES {
        for hidden in SIZES {
            let bytes = hidden * ty.bytes();
            for count in [0, 1, 2, 3, 9, 32] {
                let rows: Vec<Row> =
                    (0..count).map(|n| Row::of(&random.bytes(bytes), 16 * (n % 4))).collect();
                let biases = [Row::of(&random.bytes(bytes), 0), Row::of(&random.bytes(bytes), 16)];
                let weights: Vec<Option<f32>> = (0..count)
                    .map(|_| (random.below(2) == 1).then(|| f32::from_bits((random.next() >> 32) as u32)))
                    .collect();
                sum(&rows, &weights, [Some(&biases[0]), Some(&biases[1])], ty);
                sum(&rows, &weights, [None, Some(&biases[1])], ty);
                if count > 0 {
                    sum(&rows, &weights, [None, None], ty);
                    sum(&rows, &vec![None; count], [None, None], ty);
                }
            }
        }
    }
}

/// Fixed point with 60 fraction bits. Converting an i128 to f32 rounds to nearest even, once.
struct Fixed(i128);

impl Fixed {
    const ONE: f64 = (1u64 << 60) as f64;

    fn of(x: f64) -> Fixed {
        let scaled = x * Fixed::ONE;
        assert_eq!(scaled.trunc(), scaled);
        Fixed(scaled as i128)
    }

    fn round(&self) -> f32 {
        self.0 as f32 / Fixed::ONE as f32
    }
}

#[test]
fn agrees_with_exact_arithmetic_rounded_at_every_step() {
    let mut random = Random::new(6);
    let hidden = 136;
    for ty in TYPES {
        for round in 0..200 {
            // Multiples of 2^-7 or 2^-12 below 4, and of 2^-20 for weights: every partial sum is exact in 60 bits.
            let unit = if ty == RowType::Bf16 { 7 } else { 12 };
            let mut values = |count: usize| -> Vec<f64> {
                (0..count)
                    .map(|_| {
                        let limit = if ty == RowType::Fp32 { 1 << 14 } else { 1 << 8 };
                        (random.below(2 * limit) as f64 - limit as f64) / f64::from(1u32 << unit)
                    })
                    .collect()
            };
            let count = 1 + round % 8;
            let table: Vec<Vec<f64>> = (0..count + 2).map(|_| values(hidden)).collect();
            let rows: Vec<Row> = table.iter().map(|row| encode(row, ty)).collect();
            let weights: Vec<Option<f32>> = (0..count)
                .map(|_| (random.below(3) > 0).then(|| random.below(1 << 21) as f32 / (1 << 20) as f32 - 1.0))
                .collect();
            let (bias0, bias1) = (&rows[count], &rows[count + 1]);
            let got = sum(&rows[..count], &weights, [Some(bias0), Some(bias1)], ty);
            for at in 0..hidden {
                let mut acc = Fixed::of(table[count][at] + table[count + 1][at]).round();
                for (row, weight) in table.iter().zip(&weights) {
                    let factor = f64::from(weight.unwrap_or(1.0));
                    acc = Fixed(Fixed::of(f64::from(acc)).0 + Fixed::of(row[at] * factor).0).round();
                }
                assert_eq!(got[at * ty.bytes()..][..ty.bytes()], round_to(acc, ty), "{ty:?} element {at}");
            }
        }
    }
}

fn encode(values: &[f64], ty: RowType) -> Row {
    let bytes: Vec<u8> = values.iter().flat_map(|&x| round_to(x as f32, ty)).collect();
    let exact = Row::of(&bytes, 16);
    for (index, &value) in values.iter().enumerate() {
        // SAFETY: the row has as many elements as `values`.
        assert_eq!(f64::from(unsafe { ty.load(exact.ptr(), index) }), value);
    }
    exact
}

fn round_to(x: f32, ty: RowType) -> Vec<u8> {
    let (format, last) = match ty {
        RowType::Fp32 => return x.to_le_bytes().to_vec(),
        RowType::Bf16 => (BF16, 0x7F80),
        RowType::Fp16 => (FP16, 0x7C00),
    };
    let sign = u16::from(x.is_sign_negative()) << 15;
    (sign | format.nearest(f64::from(x.abs()), last) as u16).to_le_bytes().to_vec()
}

#[test]
fn weighted_terms_round_once() {
    let x = 1.0 + 1.0 / 4096.0; // x * x = 1 + 2^-11 + 2^-24, which does not fit an f32
    let got = one_f32(&[-(1.0 + 1.0 / 2048.0), x], &[None, Some(x)], [None, None]);
    assert_eq!(f32::from_bits(got), 2f32.powi(-24));
}

#[test]
fn order_matters_and_is_kept() {
    let plain = [None, None, None];
    assert_eq!(f32::from_bits(one_f32(&[1e8, 1.0, -1e8], &plain, [None, None])), 0.0);
    assert_eq!(f32::from_bits(one_f32(&[1e8, -1e8, 1.0], &plain, [None, None])), 1.0);
    assert_eq!(f32::from_bits(one_f32(&[1.0], &[None], [Some(1e8), Some(-1e8)])), 1.0);
    assert_eq!(f32::from_bits(one_f32(&[-1e8], &[None], [Some(1e8), Some(1.0)])), 0.0);
    assert_eq!(f32::from_bits(one_f32(&[], &[], [None, Some(3.0)])), 3.0);
}

#[test]
fn sums_are_wider_than_their_rows() {
    // 256 + 1 + 1: in BF16 both ones would be lost, in FP32 only the last rounding counts.
    assert_eq!(one_bf16(&[0x4380, 0x3F80, 0x3F80]), 0x4381);
    // 256 + 1 is a tie and goes to the even 256; 258 + 1 to the even 260.
    assert_eq!(one_bf16(&[0x4380, 0x3F80]), 0x4380);
    assert_eq!(one_bf16(&[0x4381, 0x3F80]), 0x4382);
    assert_eq!(one_bf16(&[0x7F7F, 0x7F7F]), 0x7F80);
    assert_eq!(one_bf16(&[0x0001, 0x0001]), 0x0002); // subnormals
}

#[test]
fn signs_of_zero() {
    assert_eq!(one_bf16(&[0x8000]), 0x0000);
    assert_eq!(one_bf16(&[0x0000, 0x8000]), 0x0000);
    assert_eq!(one_f32(&[-0.0], &[None], [None, None]), 0);
    assert_eq!(one_f32(&[-0.0], &[Some(1.0)], [None, None]), 0);
    assert_eq!(one_f32(&[-0.0], &[None], [Some(-0.0), None]), 0x8000_0000);
    assert_eq!(one_f32(&[], &[], [Some(-0.0), Some(-0.0)]), 0x8000_0000);
}

#[test]
fn nan_is_canonical_and_infinities_remain() {
    for nan in [0x7FC0u16, 0xFFC0, 0x7F81, 0xFFFF] {
        assert_eq!(one_bf16(&[0x3F80, nan]), 0x7FFF);
    }
    assert_eq!(one_bf16(&[0x7F80, 0xFF80]), 0x7FFF);
    assert_eq!(one_bf16(&[0xFF80, 0x3F80]), 0xFF80);
    let nan = f32::from_bits(0xFFC0_1234);
    assert_eq!(one_f32(&[nan], &[None], [None, None]), 0x7FFF_FFFF);
    assert_eq!(one_f32(&[], &[], [Some(nan), None]), 0x7FFF_FFFF);
    assert_eq!(one_f32(&[f32::INFINITY], &[Some(0.0)], [None, None]), 0x7FFF_FFFF);
    assert_eq!(one_f32(&[1.0], &[Some(f32::NEG_INFINITY)], [None, None]), 0xFF80_0000);
    let rows = [row_u16(&[0xFE01; 24])];
    assert_eq!(sum(&rows, &[None], [None, None], RowType::Fp16), [0xFF, 0x7F].repeat(24));
    let large = [row_u16(&[0x7BFF; 24]), row_u16(&[0x7BFF; 24])];
    assert_eq!(sum(&large, &[None; 2], [None, None], RowType::Fp16), [0x00, 0x7C].repeat(24));
}

#[test]
fn no_terms_and_no_bias_give_zeros() {
    for ty in TYPES {
        let mut out = Row::new(24 * ty.bytes(), 16);
        // SAFETY: the row has 24 elements.
        unsafe { sum_row(&[], [None, None], ty, 24, out.ptr_mut(), Stream::Past) };
        copy_fence();
        assert!(out.bytes().iter().all(|&byte| byte == 0));
    }
}
