use super::super::copy::past_from;
use super::super::{copy_fence, copy_row, copy_row_to_many, zero_row, Stream};
use super::{Random, Row};

const SIZES: [usize; 9] = [0, 16, 48, 64, 112, 240, 5760, 14336, 14352];

#[test]
fn copies_all_bytes_and_no_others() {
    let mut random = Random::new(2);
    for stream in [Stream::Cached, Stream::Past] {
        for bytes in SIZES {
            for (from, to) in [(0, 0), (16, 0), (0, 16), (48, 32), (16, 48)] {
                let src = Row::of(&random.bytes(bytes), from);
                let mut dst = Row::new(bytes, to);
                // SAFETY: both rows have `bytes` bytes.
                unsafe { copy_row(src.ptr(), dst.ptr_mut(), bytes, stream) };
                copy_fence();
                assert!(src.bytes() == dst.bytes(), "{bytes} {from} {to} {stream:?}");
                assert!(dst.surroundings_untouched(), "{bytes} {from} {to} {stream:?}");
            }
        }
    }
}

#[test]
fn copies_to_every_destination() {
    let mut random = Random::new(3);
    for stream in [Stream::Cached, Stream::Past] {
        for bytes in SIZES {
            for count in [0, 1, 3, 8] {
                let src = Row::of(&random.bytes(bytes), 16);
                let mut rows: Vec<Row> = (0..count).map(|n| Row::new(bytes, 16 * (n % 4))).collect();
                let dsts: Vec<*mut u8> = rows.iter_mut().map(Row::ptr_mut).collect();
                // SAFETY: all rows have `bytes` bytes.
                unsafe { copy_row_to_many(src.ptr(), &dsts, bytes, stream) };
                copy_fence();
                for row in &rows {
                    assert!(src.bytes() == row.bytes(), "{bytes} {count} {stream:?}");
                    assert!(row.surroundings_untouched());
                }
            }
        }
    }
}

#[test]
fn zeroes_all_bytes_and_no_others() {
    for stream in [Stream::Cached, Stream::Past] {
        for bytes in SIZES {
            for offset in [0, 16, 32, 48] {
                let mut row = Row::new(bytes, offset);
                // SAFETY: the row has `bytes` bytes.
                unsafe { zero_row(row.ptr_mut(), bytes, stream) };
                copy_fence();
                assert!(row.bytes().iter().all(|&byte| byte == 0));
                assert!(row.surroundings_untouched());
            }
        }
    }
}

#[test]
fn streams_from_the_threshold_on() {
    let limit = past_from();
    assert!(limit >= 4 << 20);
    assert_eq!(Stream::for_bytes(0), Stream::Cached);
    assert_eq!(Stream::for_bytes(limit - 1), Stream::Cached);
    assert_eq!(Stream::for_bytes(limit), Stream::Past);
}
