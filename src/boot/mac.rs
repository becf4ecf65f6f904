//! Secrets, nonces and proofs: random bytes, and SipHash-2-4 with 128-bit output as the keyed hash.

pub(super) use crate::mem::random;

pub(super) type Key = [u8; 16];
/// A proof, or a value derived from a key.
pub(super) type Tag = [u8; 16];

/// Keyed hash of `parts`; `purpose` keeps values made for different ends apart, lengths keep parts apart.
pub(super) fn tag(key: &Key, purpose: u8, parts: &[&[u8]]) -> Tag {
    let mut message = vec![purpose];
    for part in parts {
        message.extend_from_slice(&(part.len() as u64).to_le_bytes());
        message.extend_from_slice(part);
    }
    siphash128(key, &message)
}

/// Comparison whose time does not tell how much was right.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

fn siphash128(key: &Key, message: &[u8]) -> Tag {
    let word = |bytes: &[u8]| {
        bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte))
        // little-endian, short is fine
    };
    let (k0, k1) = (word(&key[..8]), word(&key[8..]));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut absorb = |m: u64| {
        v[3] ^= m;
        rounds(&mut v, 2);
        v[0] ^= m;
    };
    let blocks = message.chunks_exact(8);
    let last = word(blocks.remainder()) | (message.len() as u64) << 56;
    blocks.for_each(|block| absorb(word(block)));
    absorb(last);
    let mut out = [0u8; 16];
    v[2] ^= 0xee;
    rounds(&mut v, 4);
    out[..8].copy_from_slice(&(v[0] ^ v[1] ^ v[2] ^ v[3]).to_le_bytes());
    v[1] ^= 0xdd;
    rounds(&mut v, 4);
    out[8..].copy_from_slice(&(v[0] ^ v[1] ^ v[2] ^ v[3]).to_le_bytes());
    out
}

fn rounds(v: &mut [u64; 4], count: usize) {
    for _ in 0..count {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_published_vectors() {
        let key: Key = std::array::from_fn(|i| i as u8);
        let hex = |tag: Tag| tag.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(siphash128(&key, &[])), "a3817f04ba25a8e66df67214c7550293");
        assert_eq!(hex(siphash128(&key, &[0])), "da87c1d86b99af44347659119b22fc45");
    }

    #[test]
    fn everything_that_goes_in_matters() {
        let base = tag(&[1; 16], 1, &[b"ab", b"c"]);
        assert_ne!(base, tag(&[2; 16], 1, &[b"ab", b"c"]));
        assert_ne!(base, tag(&[1; 16], 2, &[b"ab", b"c"]));
        assert_ne!(base, tag(&[1; 16], 1, &[b"a", b"bc"]));
        assert!(same(&base, &tag(&[1; 16], 1, &[b"ab", b"c"])));
        assert!(!same(&base, &base[..15]));
        assert_ne!(random().unwrap(), random().unwrap());
    }
}
