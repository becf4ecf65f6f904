//! Divisions that kernels make by a multiplication.

/// 2^32 / divisor, rounded up: the upper half of its product with a number up to `most` is the quotient. 0 where it is not.
pub fn magic(divisor: u64, most: u64) -> u32 {
    if divisor < 2 {
        return 0;
    }
    let magic = (1u64 << 32).div_ceil(divisor);
    let excess = magic * divisor - (1 << 32);
    match most < 1 << 32 && most.saturating_mul(excess) < 1 << 32 {
        true => magic as u32,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_divide_as_divisions_do() {
        for (divisor, most) in [
            (2, u64::from(u32::MAX)),
            (3, 1 << 20),
            (7, 1 << 29),
            (14, 1 << 28),
            (256, 1 << 31),
            (1000, 4_000_000),
        ] {
            let magic = magic(divisor, most);
            assert_ne!(magic, 0);
            for n in (0..1000)
                .flat_map(|i| [i, i * divisor, (i + 1) * divisor - 1, most - i])
                .filter(|&n| n <= most)
            {
                assert_eq!((n * u64::from(magic)) >> 32, n / divisor, "{n} / {divisor}");
            }
        }
        assert_eq!([magic(0, 9), magic(1, 9), magic(1000, 1 << 31), magic(8, 1 << 32)], [0; 4]);
    }
}
