//! The ranks of a measurement: threads of this process that share a GPU, or one process for each GPU.

use super::case::Case;
use super::gpu::Gpu;
use super::sequence::{Effort, Place, Seen};
use crate::common::{id_from_text, id_to_text, local_group_on, unique_id, Comm, Outcome};
use deepep::capi::deep_ep_backend_t;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

const MEET_MS: u32 = 60_000;

/// What one rank has to say about one case.
#[derive(Serialize, Deserialize)]
struct Answer {
    case: usize,
    rank: usize,
    seen: Result<Seen, String>,
}

/// Called with each case and what its ranks saw, in order.
pub type Tell<'a> = dyn FnMut(&Case, Result<Vec<Seen>, String>) + 'a;

/// `ranks` threads on device 0.
pub fn threads(gpu: Gpu, ranks: usize, cases: &[Case], effort: &Effort, tell: &mut Tell) -> Outcome<()> {
    let comms = local_group_on(ranks, deep_ep_backend_t::DEEP_EP_BACKEND_CUDA)?;
    let (sender, answers) = mpsc::channel();
    std::thread::scope(|scope| {
        for (rank, comm) in comms.into_iter().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || {
                measure_all(gpu, comm, rank, ranks, cases, effort, &mut |answer| {
                    let _ = sender.send(answer);
                })
            });
        }
        drop(sender);
        gather(ranks, cases, &mut answers.iter().map(Ok), tell)
    })
}

fn measure_all(
    gpu: Gpu,
    comm: Comm,
    rank: usize,
    ranks: usize,
    cases: &[Case],
    effort: &Effort,
    answer: &mut dyn FnMut(Answer),
) {
    let mut place = match Place::new(gpu, comm, rank, ranks, effort.pool_bytes) {
        Ok(place) => place,
        Err(error) => return answer(Answer { case: 0, rank, seen: Err(error) }),
    };
    for (case, what) in cases.iter().enumerate() {
        answer(Answer { case, rank, seen: place.measure(what, effort) });
    }
}

/// Hands on each case once all its ranks have answered.
fn gather(
    ranks: usize,
    cases: &[Case],
    answers: &mut dyn Iterator<Item = Outcome<Answer>>,
    tell: &mut Tell,
) -> Outcome<()> {
    let mut open: Vec<Vec<Option<Result<Seen, String>>>> =
        cases.iter().map(|_| (0..ranks).map(|_| None).collect()).collect();
    let mut told = 0;
    for answer in answers {
        let answer = answer?;
        let place = open.get_mut(answer.case).and_then(|case| case.get_mut(answer.rank));
        *place.ok_or("an answer to no question")? = Some(answer.seen);
        while told < cases.len() && open[told].iter().all(Option::is_some) {
            tell(&cases[told], open[told].drain(..).flatten().collect());
            told += 1;
        }
    }
    if told == cases.len() {
        Ok(())
    } else {
        Err(format!("the ranks ended before case {}", cases[told].id))
    }
}

/// This program once for each rank, one on each device; `arguments` lead to the same cases there.
pub fn processes(ranks: usize, arguments: &[String], cases: &[Case], tell: &mut Tell) -> Outcome<()> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let id = id_to_text(&unique_id("")?);
    let mut children: Vec<Child> = (0..ranks)
        .map(|rank| {
            let place = [
                "--rank".to_string(),
                rank.to_string(),
                "--ranks".into(),
                ranks.to_string(),
                "--id".into(),
                id.clone(),
            ];
            let mut command = Command::new(&program);
            command.args(arguments).args(place).stdout(Stdio::piped()).stdin(Stdio::null());
            command.spawn().map_err(|error| format!("cannot start rank {rank}: {error}"))
        })
        .collect::<Outcome<_>>()?;
    let (sender, answers) = mpsc::channel();
    let outcome = std::thread::scope(|scope| {
        for child in &mut children {
            let (sender, output) = (sender.clone(), child.stdout.take());
            scope.spawn(move || {
                for line in BufReader::new(output?).lines().map_while(Result::ok) {
                    let answer = serde_json::from_str(&line).map_err(|error| format!("{error} in: {line}"));
                    sender.send(answer).ok()?;
                }
                Some(())
            });
        }
        drop(sender);
        gather(ranks, cases, &mut answers.iter(), tell)
    });
    for child in &mut children {
        if outcome.is_err() {
            let _ = child.kill();
        }
        child.wait().map_err(|error| error.to_string())?;
    }
    outcome
}

/// What a process that was started as a rank does.
pub fn rank(gpu: Gpu, rank: usize, ranks: usize, id: &str, cases: &[Case], effort: &Effort) -> Outcome<()> {
    let comm = Comm::join_on(
        deep_ep_backend_t::DEEP_EP_BACKEND_CUDA,
        rank,
        rank,
        ranks,
        id_from_text(id)?,
        MEET_MS,
    )?;
    let mut output = std::io::stdout().lock();
    measure_all(gpu, comm, rank, ranks, cases, effort, &mut |answer| {
        if let Ok(text) = serde_json::to_string(&answer) {
            let _ = writeln!(output, "{text}");
        }
    });
    Ok(())
}
