//! `cargo test --release rows_speed -- --ignored --nocapture --test-threads 1` prints bandwidths next to those of
//! `memcpy` in the same run. Bandwidth counts what an operation must move: each byte read once and written once.

use super::super::{
    cast_row_fp8, copy_fence, copy_row, copy_row_to_many, sum_row, zero_row, RowType, ScaleKind, Stream, Term,
};
use std::sync::Barrier;
use std::time::Instant;

const HIDDEN: usize = 7168;
const ROW: usize = HIDDEN * 2;
const ROWS: usize = 20_000; // 287 MB per array
const ROUNDS: usize = 11;

/// One array per thread and role, by address so that threads may share it.
#[derive(Clone, Copy)]
struct Array(usize);

impl Array {
    fn new() -> Array {
        let layout = std::alloc::Layout::from_size_align(ROWS * ROW, 1 << 21).unwrap();
        // SAFETY: the size is not zero. The benchmark keeps its arrays to the end.
        let start = unsafe { std::alloc::alloc(layout) };
        // SAFETY: just allocated. BF16 values near one, and every page touched; huge pages where allowed, as shared
        // windows use them.
        unsafe {
            libc::madvise(start.cast(), ROWS * ROW, libc::MADV_HUGEPAGE);
            start.cast::<u16>().write(0x3F80);
            std::slice::from_raw_parts_mut(start.cast::<u16>(), ROWS * HIDDEN).fill(0x3F81);
        }
        Array(start as usize)
    }

    fn row(self, index: usize) -> *mut u8 {
        (self.0 + index * ROW) as *mut u8
    }
}

/// Seconds that `threads` threads take to do `work` at once, on a share of the rows each.
fn seconds(threads: usize, work: &(dyn Fn(usize, usize) + Sync)) -> f64 {
    let barrier = Barrier::new(threads + 1);
    let start = std::thread::scope(|scope| {
        for thread in 0..threads {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                work(ROWS * thread / threads, ROWS * (thread + 1) / threads);
                copy_fence();
            });
        }
        barrier.wait();
        Instant::now()
    });
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A fixed scattered order of the rows.
fn scattered(index: usize) -> usize {
    index * 7919 % ROWS
}

#[test]
#[ignore = "prints bandwidths; needs about 2 GB and an idle machine"]
fn rows_speed() {
    let (a, b, c, d) = (Array::new(), Array::new(), Array::new(), Array::new());
    let (e, f) = (Array::new(), Array::new());
    let once = ROWS * ROW;
    let sum = |rows: &[Array], weight: Option<f32>, index: usize, stream: Stream| {
        let mut terms = [Term { row: std::ptr::null(), weight }; 8];
        for (term, array) in terms.iter_mut().zip(rows) {
            term.row = array.row(scattered(index));
        }
        // SAFETY: rows of the arrays; `d` is none of the terms.
        unsafe { sum_row(&terms[..rows.len()], [None; 2], RowType::Bf16, HIDDEN, d.row(index), stream) };
    };
    type Work<'a> = (&'a str, usize, Box<dyn Fn(usize, usize) + Sync + 'a>);
    let each = |work: Box<dyn Fn(usize) + Sync>| -> Box<dyn Fn(usize, usize) + Sync> {
        Box::new(move |from, to| (from..to).for_each(&work))
    };
    // SAFETY (all closures below): rows of different arrays, each of ROW bytes; a thread has its own range of rows.
    let works: Vec<Work> = vec![
        (
            "memcpy, one call",
            2 * once,
            Box::new(|from, to| {
                // SAFETY: as above.
                unsafe { libc::memcpy(b.row(from).cast(), a.row(from).cast(), (to - from) * ROW) };
            }),
        ),
        (
            "memcpy by rows",
            2 * once,
            each(Box::new(move |i| {
                // SAFETY: as above.
                unsafe { libc::memcpy(b.row(i).cast(), a.row(i).cast(), ROW) };
            })),
        ),
        (
            "copy_row",
            2 * once,
            each(Box::new(move |i| {
                // SAFETY: as above.
                unsafe { copy_row(a.row(i), b.row(i), ROW, Stream::Past) };
            })),
        ),
        (
            "copy_row, scattered",
            2 * once,
            each(Box::new(move |i| {
                // SAFETY: as above.
                unsafe { copy_row(a.row(scattered(i)), b.row(i), ROW, Stream::Past) };
            })),
        ),
        (
            "copy_row_to_many, 4",
            5 * once,
            each(Box::new(move |i| {
                let dsts = [b.row(i), c.row(i), d.row(i), e.row(i)];
                // SAFETY: as above.
                unsafe { copy_row_to_many(a.row(i), &dsts, ROW, Stream::Past) };
            })),
        ),
        (
            "zero_row",
            once,
            each(Box::new(move |i| {
                // SAFETY: as above.
                unsafe { zero_row(b.row(i), ROW, Stream::Past) };
            })),
        ),
        (
            "read only",
            once,
            each(Box::new(move |i| {
                // SAFETY: as above.
                let words = unsafe { std::slice::from_raw_parts(a.row(scattered(i)).cast::<u64>(), ROW / 8) };
                std::hint::black_box(words.iter().fold(0, |sum, word| sum ^ word));
            })),
        ),
        ("sum, 1 term", 2 * once, each(Box::new(move |i| sum(&[a], None, i, Stream::Past)))),
        ("sum, 2 terms", 3 * once, each(Box::new(move |i| sum(&[a, b], None, i, Stream::Past)))),
        ("sum, 3 terms", 4 * once, each(Box::new(move |i| sum(&[a, b, c], None, i, Stream::Past)))),
        ("sum, 3 weighted", 4 * once, each(Box::new(move |i| sum(&[a, b, c], Some(0.5), i, Stream::Past)))),
        ("sum, 3 cached", 4 * once, each(Box::new(move |i| sum(&[a, b, c], None, i, Stream::Cached)))),
        ("sum, 5 terms", 6 * once, each(Box::new(move |i| sum(&[a, b, c, e, f], None, i, Stream::Past)))),
        (
            "cast to FP8",
            once + once / 2,
            each(Box::new(move |i| {
                let (codes, scales) = (b.row(i), c.row(i));
                // SAFETY: as above; codes and scales are shorter than a row.
                unsafe { cast_row_fp8(a.row(i), RowType::Bf16, HIDDEN, ScaleKind::Fp32, codes, scales) };
            })),
        ),
    ];
    // All kinds of work in turn, so that a disturbance falls on all alike.
    for threads in [1, 2] {
        let mut rates = vec![Vec::new(); works.len()];
        for _ in 0..ROUNDS {
            for ((_, bytes, work), rates) in works.iter().zip(&mut rates) {
                rates.push(*bytes as f64 / seconds(threads, work.as_ref()) / 1e9);
            }
        }
        for ((name, _, _), of_work) in works.iter().zip(&rates) {
            let best = of_work.iter().copied().fold(0.0, f64::max);
            let ratio = median(of_work.iter().zip(&rates[0]).map(|(rate, memcpy)| rate / memcpy).collect());
            let rate = median(of_work.clone());
            println!("{threads} thread(s)  {name:20} median {rate:6.1}, best {best:6.1} GB/s, {ratio:.2} of memcpy");
        }
    }
}
