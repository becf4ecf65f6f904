//! Whole operations with real rows under shuttle: random programs, random schedules, and ranks that stop or abort.

use super::super::comm::{Backend, Comm};
use super::super::state::Buffer;
use super::operations::{Dice, Rank, TOKENS, TOPK};
use crate::error::{Error, Status};
use crate::mem::word::explored::{alone, Exploration, PAUSE};
use crate::plan::config::{Config, RawConfig};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const STEPS: usize = 14;
/// Far more pauses than a schedule lets a rank make while the others come.
const PATIENT: u32 = 20_000;

/// What is random in a program, and what happens to one of its ranks.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    ranks: usize,
    layout: u32,
    sync: u32,
    in_flight: i32,
    windows: i32,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    All,
    /// The last rank makes no call any more from this step on.
    Stops(usize),
    Aborts(usize),
}

impl Plan {
    fn of(seed: u64, end: impl Fn(usize) -> End) -> Plan {
        let mut dice = Dice(seed);
        Plan {
            seed,
            ranks: 2 + dice.below(2),
            layout: dice.below(4) as u32,
            sync: dice.below(3) as u32,
            in_flight: 1 + dice.below(3) as i32,
            windows: dice.below(4) as i32,
            end: end(dice.below(STEPS)),
        }
    }

    fn buffers(&self, pauses: u32) -> (Vec<Arc<Comm>>, Vec<Arc<Buffer>>) {
        let timeout_ms = PAUSE.as_millis() as u32 * pauses;
        let raw = RawConfig {
            layout: self.layout,
            sync: self.sync,
            max_tokens: TOKENS as i64,
            max_row_bytes: 16,
            num_experts: self.ranks as i32,
            num_topk: TOPK as i32,
            max_in_flight: self.in_flight,
            dispatch_windows: self.windows,
            combine_windows: self.windows,
            timeout_ms,
            first_timeout_ms: timeout_ms,
            ..Default::default()
        };
        let comms = Comm::create_local(self.ranks as u32, Backend::Host, &[]).unwrap();
        let config = Config::parse(raw, None, self.ranks).unwrap();
        let buffers = Buffer::create_local(&comms, config).unwrap();
        (comms, buffers)
    }

    /// What a rank's calls decided, and how it ended.
    fn run_rank(
        &self,
        rank: usize,
        comm: &Comm,
        buffer: &Arc<Buffer>,
    ) -> (Vec<Option<Status>>, Option<Error>) {
        let mut program = Rank::new(buffer.clone(), self.in_flight as usize + 1);
        let mut dice = Dice(self.seed ^ 0x5eed);
        for step in 0..STEPS {
            if rank + 1 == self.ranks && self.end == End::Stops(step) {
                return (program.decisions, None);
            }
            if rank + 1 == self.ranks && self.end == End::Aborts(step) {
                comm.abort("as planned");
            }
            if let Err(error) = program.step(step, &mut dice) {
                return (program.decisions, Some(error));
            }
        }
        let end = program.finish().err();
        (program.decisions, end)
    }

    fn run(self, pauses: u32, check: fn(&Plan, usize, &Option<Error>)) {
        let (comms, buffers) = self.buffers(pauses);
        let decisions = Arc::new(Mutex::new(Vec::new()));
        let ranks: Vec<_> = comms
            .into_iter()
            .zip(buffers)
            .enumerate()
            .map(|(rank, (comm, buffer))| {
                let decisions = decisions.clone();
                shuttle::thread::spawn(move || {
                    let (mine, end) = self.run_rank(rank, &comm, &buffer);
                    check(&self, rank, &end);
                    decisions.lock().unwrap().push(mine);
                })
            })
            .collect();
        for rank in ranks {
            rank.join().unwrap();
        }
        let decisions = decisions.lock().unwrap();
        for (step, all) in
            (0..STEPS).map(|step| (step, decisions.iter().filter_map(move |mine| mine.get(step))))
        {
            let mut busy = all.map(|status| *status == Some(Status::DEEP_EP_BUSY));
            let first = busy.next();
            assert!(
                self.end != End::All || busy.all(|other| Some(other) == first),
                "{self:?}: step {step} was not BUSY alike"
            );
        }
    }
}

fn explore(
    scheduler: impl Scheduler + 'static,
    pauses: u32,
    end: fn(usize) -> End,
    check: fn(&Plan, usize, &Option<Error>),
) {
    let _alone = alone();
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    let seed = AtomicU64::new(1);
    shuttle::Runner::new(scheduler, config).run(move || {
        let _exploration = Exploration::of_shuttle();
        Plan::of(seed.fetch_add(1, Ordering::Relaxed), end).run(pauses, check);
    });
}

fn ends_well(plan: &Plan, rank: usize, end: &Option<Error>) {
    assert!(end.is_none(), "{plan:?}, rank {rank}: {}", end.as_ref().unwrap());
}

#[test]
fn random_programs_under_random_schedules() {
    explore(RandomScheduler::new_from_seed(1, 1500), PATIENT, |_| End::All, ends_well);
}

#[test]
fn random_programs_with_few_preemptions() {
    explore(PctScheduler::new_from_seed(2, 4, 1500), PATIENT, |_| End::All, ends_well);
}

/// The others end with a name, however far they came.
#[test]
fn a_rank_that_stops_ends_everybodys_waits() {
    explore(RandomScheduler::new_from_seed(3, 600), 400, End::Stops, |plan, rank, end| {
        let Some(error) = end else { return };
        assert_eq!(error.status, Status::DEEP_EP_TIMEOUT, "{plan:?}, rank {rank}: {error}");
        let missing = plan.ranks as u32 - 1;
        assert!(error.ranks.contains(&missing) || rank as u32 == missing, "{plan:?}, rank {rank}: {error}");
    });
}

#[test]
fn an_abort_ends_everybodys_waits() {
    explore(RandomScheduler::new_from_seed(4, 600), PATIENT, End::Aborts, |plan, rank, end| {
        let Some(error) = end else { return };
        assert_eq!(error.status, Status::DEEP_EP_ABORTED, "{plan:?}, rank {rank}: {error}");
        assert!(error.text.contains("as planned"), "{error}");
        assert_eq!(error.ranks, [plan.ranks as u32 - 1]);
    });
}
