//! An exhaustive model of windows and signals: when does a rank overwrite what another still reads, and when
//! does it wait for ever? The decisions come from `deepep::plan::windows` and `deepep::plan::words`, the same
//! functions the library calls; the model adds ranks that run at any speed, stores and signals that reach
//! each peer in any order, and every order of calls up to a bound.
//!
//! # Layout
//! `programs` makes orders of calls; `decide` runs them through the library and notes epochs, windows and
//! guards; `protocol` and `writer` turn that into steps of every rank; `net` and `search` decide whether any order of
//! the steps does harm; `words` replaces ideal signals by memory words; `streams` has kernels that compete for
//! epochs or processors; `live` drives the library call by call on ranks whose windows have contents. The
//! claims are in `claims_*`.
//!
//! # How to read a trace
//! Each claim prints a line: its verdict, tag and text, how many programs were decided and how many states
//! visited. Below a claim that fails as it should stands the shortest run into the failure:
//! ```text
//! UNSAFE A1 one window for all calls  [2 programs, 377 states]
//!       rank 0 writes 1 for op 1, signals op 1 to 1
//!       rank 1 writes 0 for op 1, signals op 1 to 0, sees op 1 of 0, ends its reads of op 1, writes 0 for op 2
//!       <-- not yet: rank 0 ends its reads of op 1
//! ```
//! Lines are in the order of time; a rank's name starts a line whenever another rank goes on. Operations are
//! numbered from 1 in the order in which the ranks send them. "writes 0 for op 2": stores rows into the window
//! of rank 0 that operation 2 uses (stores into the own window are left out). The last step is the one that does
//! the harm, and the arrow says what it came before: here rank 0 was about to read the rows of operation 1,
//! and rank 1 stores those of operation 2 over them. For a hang the arrow lists what each rank awaits in vain.
//! Nothing can be left out of a trace: every step in it is needed for the last.

pub mod decide;
pub mod live;
pub mod net;
pub mod programs;
pub mod protocol;
pub mod search;
pub mod streams;
pub mod words;
mod writer;

mod claims_guard;
mod claims_live;
mod claims_order;
mod claims_pushed;
mod claims_table;

use net::{Kind, Net, Outcome, Verdict};
use std::sync::Arc;

/// States that a claim may visit to check the verdicts found by order; the rest is by order alone.
const STATES: usize = 40_000;
/// States for one net that can only be decided by visiting them.
const LIMIT: usize = 4_000_000;

struct Shortest {
    length: usize,
    verdict: Verdict,
    end: (Kind, usize),
    text: String,
}

#[derive(Default)]
struct Tally {
    programs: usize,
    failures: usize,
    states: usize,
    shortest: Option<Shortest>,
}

fn decide(net: &Arc<Net>, tally: &mut Tally) -> Outcome {
    if !net.plain {
        let Some(outcome) = search::search(net, LIMIT) else { panic!("more than {LIMIT} states") };
        tally.states += outcome.states;
        return outcome;
    }
    let outcome = net.order();
    if tally.states < STATES && net.steps.len() < 200 {
        if let Some(visited) = search::search(net, STATES) {
            tally.states += visited.states;
            assert_eq!(visited.verdict, outcome.verdict, "two ways to decide differ: {}", net.tell(&visited));
            if visited.verdict == Verdict::Unsafe {
                assert_eq!(
                    visited.trace.len(),
                    outcome.trace.len(),
                    "shortest traces differ: {}",
                    net.tell(&visited)
                );
            }
        } else {
            tally.states += STATES / 4;
        }
    }
    outcome
}

fn tally(nets: impl IntoIterator<Item = Net>) -> Tally {
    let mut tally = Tally::default();
    for net in nets {
        let net = Arc::new(net);
        let outcome = decide(&net, &mut tally);
        tally.programs += 1;
        if outcome.verdict == Verdict::Safe {
            continue;
        }
        tally.failures += 1;
        let length = outcome.trace.len();
        if tally.shortest.as_ref().is_none_or(|shortest| length < shortest.length) {
            let end =
                outcome.trace.last().map_or((Kind::Write, 0), |&v| (net.steps[v].kind, net.steps[v].op + 1));
            tally.shortest =
                Some(Shortest { length, verdict: outcome.verdict, end, text: net.tell(&outcome) });
        }
    }
    tally
}

fn report(tag: &str, text: &str, tally: &Tally) {
    let (verdict, trace) = match &tally.shortest {
        None => ("SAFE", ""),
        Some(s) if s.verdict == Verdict::Hang => ("HANG", &s.text[..]),
        Some(s) => ("UNSAFE", &s.text[..]),
    };
    println!("{verdict:6} {tag} {text}  [{} programs, {} states]{trace}", tally.programs, tally.states);
}

/// No program does harm or hangs.
pub fn safe(tag: &str, text: &str, nets: impl IntoIterator<Item = Net>) {
    let tally = tally(nets);
    report(tag, text, &tally);
    assert!(tally.programs > 0, "{tag}: no programs");
    assert_eq!(tally.failures, 0, "{tag} {text}: is not safe");
}

/// Some program does harm; the shortest trace has `length` steps, the last of kind `kind` in operation `op`.
pub fn harmed(
    tag: &str,
    text: &str,
    (length, kind, op): (usize, Kind, usize),
    nets: impl IntoIterator<Item = Net>,
) {
    let tally = tally(nets);
    report(tag, text, &tally);
    let Some(shortest) = tally.shortest else { panic!("{tag} {text}: no counterexample") };
    assert_eq!(shortest.verdict, Verdict::Unsafe, "{tag}");
    assert_eq!((shortest.length, shortest.end), (length, (kind, op)), "{tag} {text}: another counterexample");
}

/// Every program does harm.
pub fn each_harmed(tag: &str, text: &str, nets: impl IntoIterator<Item = Net>) {
    let tally = tally(nets);
    report(tag, text, &tally);
    assert!(tally.programs > 0, "{tag}: no programs");
    assert_eq!(tally.failures, tally.programs, "{tag} {text}: some programs are safe");
    assert_eq!(tally.shortest.map(|s| s.verdict), Some(Verdict::Unsafe));
}

/// Some program waits for ever, and none does harm before; the run shown has `length` steps.
pub fn hangs(tag: &str, text: &str, length: usize, nets: impl IntoIterator<Item = Net>) {
    let tally = tally(nets);
    report(tag, text, &tally);
    let Some(shortest) = tally.shortest else { panic!("{tag} {text}: does not hang") };
    assert_eq!((shortest.verdict, shortest.length), (Verdict::Hang, length), "{tag} {text}");
}

/// Whether all of them are safe, without a word.
pub fn all_safe(nets: impl IntoIterator<Item = Net>) -> bool {
    nets.into_iter().all(|net| net.order().verdict == Verdict::Safe)
}
