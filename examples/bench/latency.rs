//! The smallest useful operation, between two processes.

use crate::common::{id_from_text, id_to_text, unique_id, Buffer, Comm, Outcome};
use crate::measure::{quantile, Case};
use crate::pair::{config, Pair, EXPERTS, HIDDEN, TOPK};
use crate::{alloc, machine};
use deepep::capi::deep_ep_layout_t;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

const GOAL_US: f64 = 15.0;
const MEET_MS: u32 = 30_000;

/// The argument by which the other rank is started; its id and the number of pairs follow.
pub const ROLE: &str = "latency-peer";

/// Rank 0 here, rank 1 in a process of its own.
pub fn run(pairs: usize) -> Outcome<Case> {
    let id = unique_id("")?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut peer = Command::new(program)
        .args(["--role", ROLE, "--id", &id_to_text(&id), "--pairs", &pairs.to_string()])
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start the peer: {error}"))?;
    let measured = Comm::join(0, 2, id, MEET_MS).and_then(|comm| measure(comm, 0, pairs));
    if measured.is_err() {
        let _ = peer.kill();
    }
    let ended = peer.wait().map_err(|error| error.to_string())?;
    let (mut us, counts) = measured?;
    if !ended.success() {
        return Err(format!("the peer ended with {ended}"));
    }
    let median = quantile(&mut us, 0.5);
    Ok(Case {
        case: "slotted dispatch + combine".into(),
        ranks: 2,
        shape: format!("2 processes, T=1 H={HIDDEN} BF16 top {TOPK} of {EXPERTS}"),
        us_median: Some(median),
        us_p99: Some(quantile(&mut us, 0.99)),
        counts,
        goal: format!("median < {GOAL_US} us"),
        met: Some(median < GOAL_US),
        ..Case::default()
    })
}

/// What the other process does.
pub fn peer(id: &str, pairs: usize) -> Outcome<()> {
    let comm = Comm::join(1, 2, id_from_text(id)?, MEET_MS)?;
    measure(comm, 1, pairs).map(|_| ())
}

fn measure(mut comm: Comm, rank: usize, pairs: usize) -> Outcome<(Vec<f64>, BTreeMap<String, i64>)> {
    machine::stay_on_core(rank);
    let buffer = Buffer::create(&mut comm, &config(deep_ep_layout_t::DEEP_EP_SLOTTED_BY_RANK)?)?;
    let mut pair = Pair::new(&buffer, rank as u64 + 1)?;
    for _ in 0..pairs / 10 {
        pair.run()?;
    }
    // Not zero, which would leave its pages to be made in the loop.
    let mut us = vec![1.0; pairs];
    let (before, allocations) = (Usage::now(), alloc::calls());
    for sample in &mut us {
        let begin = Instant::now();
        pair.run()?;
        *sample = begin.elapsed().as_nanos() as f64 / 1e3;
    }
    let (allocations, after) = (alloc::calls() - allocations, Usage::now());
    drop(pair);
    let counts = [
        ("pairs", pairs as i64),
        ("allocations", allocations as i64),
        ("page_faults", after.faults - before.faults),
        ("voluntary_switches", after.sleeps - before.sleeps),
        ("preemptions", after.preemptions - before.preemptions),
    ];
    Ok((us, counts.map(|(name, count)| (name.to_string(), count)).into()))
}

/// What the kernel counts for this thread.
struct Usage {
    faults: i64,
    sleeps: i64,
    preemptions: i64,
}

impl Usage {
    fn now() -> Usage {
        // SAFETY: plain data, filled in by the call.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
            usage
        };
        Usage {
            faults: usage.ru_minflt + usage.ru_majflt,
            sleeps: usage.ru_nvcsw,
            preemptions: usage.ru_nivcsw,
        }
    }
}
