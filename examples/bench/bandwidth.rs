//! Large packed operations beside plain memcpy with as many threads. The three take turns, round by round, so that
//! whatever else the machine does meets all of them.

use crate::common::{local_group, Buffer, Handle, Lines, Outcome};
use crate::filled;
use crate::measure::{median, Case, Random};
use deepep::capi::*;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

const HIDDEN: usize = 7168;
const ROW: usize = HIDDEN * 2;
const EXPERTS: usize = 256;
const TOPK: usize = 8;
/// Each thread's memcpy: large enough for no cache of its own.
const COPY: usize = 64 << 20;
const WARM_UP: usize = 2;
const GOAL: f64 = 0.7;

pub struct Plan {
    pub ranks: usize,
    pub tokens: usize,
    pub rounds: usize,
}

/// What one rank's thread works with.
struct Rank {
    handle: Handle,
    ids: Vec<i32>,
    /// Distinct ranks of each token.
    copies: Vec<usize>,
    x: Lines,
    sums: Lines,
    from: Lines,
    to: Lines,
}

/// The steps of a round. All ranks begin each together; its time ends when the last has ended it.
#[derive(Clone, Copy)]
enum Step {
    Memcpy,
    Dispatch,
    Combine,
}

const STEPS: usize = 3;

/// Times of all steps of all rounds: begin and end on each rank.
type Times = Mutex<Vec<[Vec<(Instant, Instant)>; STEPS]>>;

pub fn run(plan: &Plan, progress: &(dyn Fn() + Sync)) -> Outcome<Vec<Case>> {
    let mut comms = local_group(plan.ranks)?;
    let buffers = Buffer::create_local(&mut comms, &config(plan)?)?;
    let ranks: Vec<Rank> = buffers
        .iter()
        .enumerate()
        .map(|(rank, buffer)| Rank::new(plan, rank, buffer))
        .collect::<Outcome<_>>()?;
    let rows: usize = ranks.iter().flat_map(|rank| &rank.copies).sum();
    let read: usize = ranks.iter().map(|rank| rank.copies.iter().filter(|&&copies| copies > 0).count()).sum();
    let times = Times::new(vec![Default::default(); plan.rounds]);
    let meet = Barrier::new(plan.ranks);
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .enumerate()
            .map(|(number, mut rank)| {
                let (times, meet) = (&times, &meet);
                scope.spawn(move || {
                    rank.rounds(plan, meet, times, &|| {
                        if number == 0 {
                            progress();
                        }
                    })
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a rank's thread panicked".to_string())?)
    })?;
    let times = lock(&times);
    // Rows are read once per token and written once per destination; a sum reads those and writes one per token.
    let dispatch = (read + rows) * ROW;
    let combine = (rows + plan.ranks * plan.tokens) * ROW;
    Ok(vec![
        case(plan, "packed dispatch", Step::Dispatch, dispatch, &times),
        case(plan, "packed combine", Step::Combine, combine, &times),
    ])
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn config(plan: &Plan) -> Outcome<deep_ep_buffer_config_t> {
    let mut config = filled!(deep_ep_buffer_config_t, deep_ep_buffer_config_init);
    config.layout = deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK as u32;
    config.max_tokens = plan.tokens as i64;
    config.max_row_bytes = ROW as i64;
    config.num_experts = EXPERTS as i32;
    config.num_topk = TOPK as i32;
    Ok(config)
}

fn case(
    plan: &Plan,
    name: &str,
    step: Step,
    bytes: usize,
    times: &[[Vec<(Instant, Instant)>; STEPS]],
) -> Case {
    let seconds = |round: usize, step: Step| {
        let ranks = &times[round][step as usize];
        let (first, last) = (ranks.iter().map(|t| t.0).min(), ranks.iter().map(|t| t.1).max());
        first.zip(last).map_or(f64::NAN, |(first, last)| (last - first).as_secs_f64())
    };
    let rate = |round, step| {
        let bytes = if let Step::Memcpy = step { 2 * COPY * plan.ranks } else { bytes };
        bytes as f64 / seconds(round, step) / 1e9
    };
    let rounds = WARM_UP..plan.rounds;
    let over = |value: &dyn Fn(usize) -> f64| median(&mut rounds.clone().map(value).collect::<Vec<_>>());
    let ratio = over(&|round| rate(round, step) / rate(round, Step::Memcpy));
    Case {
        case: name.into(),
        ranks: plan.ranks,
        shape: format!("T={} H={HIDDEN} BF16 top {TOPK} of {EXPERTS}, in place", plan.tokens),
        us_median: Some(over(&|round| seconds(round, step) * 1e6)),
        gb_per_s: Some(over(&|round| rate(round, step))),
        memcpy_gb_per_s: Some(over(&|round| rate(round, Step::Memcpy))),
        ratio: Some(ratio),
        counts: [("bytes".to_string(), bytes as i64)].into(),
        goal: format!("ratio >= {GOAL}"),
        met: Some(ratio >= GOAL),
        ..Case::default()
    }
}

impl Rank {
    fn new(plan: &Plan, rank: usize, buffer: &Buffer) -> Outcome<Rank> {
        let ids = Random(rank as u64 + 1).routing(plan.tokens, TOPK, EXPERTS);
        let copies = ids.chunks_exact(TOPK).map(|ids| distinct_ranks(ids, plan.ranks)).collect();
        let mut x = Lines::new(plan.tokens * ROW);
        for (i, code) in x.chunks_exact_mut(2).enumerate() {
            // Small whole numbers, whose sums are exact.
            code.copy_from_slice(&bf16((i * 7 % 61) as f32 - 30.0).to_le_bytes());
        }
        let filled_lines = |bytes| {
            let mut lines = Lines::new(bytes);
            lines.fill(1);
            lines
        };
        Ok(Rank {
            handle: buffer.handle()?,
            ids,
            copies,
            x,
            sums: filled_lines(plan.tokens * ROW),
            from: filled_lines(COPY),
            to: filled_lines(COPY),
        })
    }

    fn rounds(&mut self, plan: &Plan, meet: &Barrier, times: &Times, ended: &dyn Fn()) -> Outcome<()> {
        let mut input = filled!(deep_ep_dispatch_in_t, deep_ep_dispatch_in_init);
        input.num_tokens = plan.tokens as i64;
        input.hidden = HIDDEN as i64;
        input.x.data = self.x.as_ptr().cast_mut().cast();
        input.x.dtype = deep_ep_dtype_t::DEEP_EP_BF16 as u32;
        input.topk_idx = self.ids.as_ptr().cast();
        input.topk_idx_dtype = deep_ep_dtype_t::DEEP_EP_INT32 as u32;
        let mut arrived = filled!(deep_ep_dispatch_out_t, deep_ep_dispatch_out_init);
        let mut back = filled!(deep_ep_combine_in_t, deep_ep_combine_in_init);
        let mut sums = filled!(deep_ep_combine_out_t, deep_ep_combine_out_init);
        sums.x.data = self.sums.as_mut_ptr().cast();
        let timed = |round: usize, step: Step, work: &mut dyn FnMut() -> Outcome<()>| {
            meet.wait();
            let begin = Instant::now();
            let outcome = work();
            lock(times)[round][step as usize].push((begin, Instant::now()));
            outcome
        };
        for round in 0..plan.rounds {
            timed(round, Step::Memcpy, &mut || {
                self.to.copy_from_slice(&self.from);
                Ok(())
            })?;
            // SAFETY: the arrays have `tokens` rows and ids; outputs are the library's.
            timed(round, Step::Dispatch, &mut || unsafe { self.handle.dispatch(&input, &mut arrived) })?;
            back.x = self.handle.combine_input(deep_ep_dtype_t::DEEP_EP_BF16)?;
            if round < WARM_UP {
                // The experts: each returns what it got. What they wrote stays there for later rounds.
                let rows: usize = (0..plan.ranks).map(|r| rows_from(&arrived, r)).sum();
                // SAFETY: `rows` rows have arrived, and the combine input has room for them.
                unsafe { back.x.data.cast::<u8>().copy_from(arrived.x.data.cast(), rows * ROW) };
            }
            // SAFETY: the input lies in place; `sums` has room for `tokens` rows.
            timed(round, Step::Combine, &mut || unsafe { self.handle.combine(&back, &sums) })?;
            if round < WARM_UP {
                self.check()?;
            }
            ended();
        }
        Ok(())
    }

    /// Every token came back once from each of its ranks.
    fn check(&self) -> Outcome<()> {
        for (token, &copies) in self.copies.iter().enumerate() {
            let codes = |lines: &Lines, i: usize| {
                let at = token * ROW + 2 * i;
                u16::from_le_bytes([lines[at], lines[at + 1]])
            };
            let wrong = (0..HIDDEN).find(|&i| {
                let value = f32::from_bits(u32::from(codes(&self.x, i)) << 16);
                codes(&self.sums, i) != bf16(value * copies as f32)
            });
            if let Some(element) = wrong {
                return Err(format!("wrong sum at token {token}, element {element}"));
            }
        }
        Ok(())
    }
}

fn rows_from(arrived: &deep_ep_dispatch_out_t, rank: usize) -> usize {
    // SAFETY: the dispatch filled in one count per rank.
    unsafe { *arrived.rank_counts.add(rank) as usize }
}

/// How many ranks own the experts of one token, split evenly.
fn distinct_ranks(ids: &[i32], ranks: usize) -> usize {
    (0..ranks).filter(|rank| ids.iter().any(|&id| id as usize * ranks / EXPERTS == *rank)).count()
}

fn bf16(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}
