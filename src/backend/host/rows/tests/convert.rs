use super::super::convert::*;
use super::{Format, Random, BF16, E4M3, FP16};

/// The expected code of a narrower type: bisection for numbers, the rules of the type for the rest.
fn expected(format: Format, value: f32, last: u32, nan: u32) -> u32 {
    if value.is_nan() {
        return nan;
    }
    let sign = u32::from(value.is_sign_negative()) << (format.exponent + format.mantissa);
    let magnitude = if value.is_infinite() { last } else { format.nearest(f64::from(value.abs()), last) };
    sign | magnitude
}

fn check(value: f32) {
    let bits = value.to_bits();
    assert_eq!(u32::from(f32_to_bf16(value)), expected(BF16, value, 0x7F80, 0x7FFF), "bf16 of {bits:#x}");
    assert_eq!(u32::from(f32_to_fp16(value)), expected(FP16, value, 0x7C00, 0x7FFF), "fp16 of {bits:#x}");
    assert_eq!(u32::from(f32_to_e4m3(value)), expected(E4M3, value, 0x7E, 0x7F), "e4m3 of {bits:#x}");
}

#[test]
fn halves_widen_to_their_value_and_come_back() {
    type Case = (Format, u32, fn(u16) -> f32, fn(f32) -> u16);
    let cases: [Case; 2] =
        [(BF16, 0x7F80, bf16_to_f32, f32_to_bf16), (FP16, 0x7C00, fp16_to_f32, f32_to_fp16)];
    for (format, infinity, widen, narrow) in cases {
        for code in 0..=u16::MAX {
            let magnitude = u32::from(code & 0x7FFF);
            let wide = widen(code);
            assert_eq!(wide.is_sign_negative(), code & 0x8000 != 0, "{code:#x}");
            if magnitude > infinity {
                assert!(wide.is_nan(), "{code:#x}");
                assert_eq!(narrow(wide), 0x7FFF, "{code:#x}");
                continue;
            }
            let value = if magnitude == infinity { f64::INFINITY } else { format.value(magnitude) };
            assert_eq!(f64::from(wide.abs()), value, "{code:#x}");
            assert_eq!(narrow(wide), code, "{code:#x}");
        }
    }
}

#[test]
fn every_midpoint_goes_to_even_and_its_neighbours_to_the_nearer_side() {
    type Case = (Format, u32, fn(f32) -> u32);
    let cases: [Case; 3] = [
        (BF16, 0x7F80, |x| u32::from(f32_to_bf16(x))),
        (FP16, 0x7C00, |x| u32::from(f32_to_fp16(x))),
        (E4M3, 0x7E, |x| u32::from(f32_to_e4m3(x))),
    ];
    for (format, last, narrow) in cases {
        for code in 0..last {
            let middle = (format.value(code) + format.value(code + 1)) / 2.0;
            let exact = middle as f32;
            assert_eq!(f64::from(exact), middle);
            let sign = 1 << (format.exponent + format.mantissa);
            for (value, result) in [
                (exact, code + code % 2),
                (f32::from_bits(exact.to_bits() - 1), code),
                (f32::from_bits(exact.to_bits() + 1), code + 1),
            ] {
                assert_eq!(narrow(value), result, "{value:e}");
                assert_eq!(narrow(-value), sign | result, "{value:e}");
            }
        }
    }
}

#[test]
fn e4m3_codes_come_back() {
    for code in 0..=u8::MAX {
        let value = e4m3_to_f32(code);
        if code & 0x7F == 0x7F {
            assert!(value.is_nan());
            assert_eq!(f32_to_e4m3(value), 0x7F);
        } else {
            assert_eq!(f64::from(value.abs()), E4M3.value(u32::from(code & 0x7F)));
            assert_eq!(f32_to_e4m3(value), code);
        }
    }
}

#[test]
fn random_values_and_edges_round_as_bisection_says() {
    let edges = [
        0.0,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::from_bits(0x007F_FFFF),
        f32::MAX,
        f32::INFINITY,
        65504.0,
        65519.996,
        65520.0,
        448.0,
        464.0,
        465.0,
        480.0,
        f32::from_bits(0x7F80_0001),
        f32::from_bits(0x7FFF_FFFF),
        f32::from_bits(0x7FC0_0000),
    ];
    for value in edges {
        check(value);
        check(-value);
    }
    let mut random = Random::new(1);
    for _ in 0..200_000 {
        check(f32::from_bits((random.next() >> 32) as u32));
        // The same, within the range of the 16- and 8-bit types.
        check(f32::from_bits((random.below(40) as u32 + 100) << 23 | (random.next() >> 41) as u32));
    }
}

#[test]
fn canonical_nans() {
    for bits in [0x7F80_0001u32, 0xFF80_0001, 0x7FC0_0000, 0xFFC1_2345, 0xFFFF_FFFF] {
        let nan = f32::from_bits(bits);
        assert_eq!(f32_to_bf16(nan), 0x7FFF);
        assert_eq!(f32_to_fp16(nan), 0x7FFF);
        assert_eq!(f32_to_fp32(nan), 0x7FFF_FFFF);
        assert_eq!(f32_to_e4m3(nan), 0x7F);
    }
    assert_eq!(f32_to_fp32(f32::NEG_INFINITY), 0xFF80_0000);
    assert_eq!(f32_to_fp32(-0.0), 0x8000_0000);
    assert_eq!(f32_to_bf16(f32::MAX), 0x7F80);
    assert_eq!(f32_to_e4m3(f32::NEG_INFINITY), 0xFE);
}
