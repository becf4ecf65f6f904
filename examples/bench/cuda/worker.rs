//! A process that measures: of one rank, of all ranks that share a device, or of the links. It is told what to do by lines on
//! its standard input and answers each with a line of JSON; the first line says that it is ready. It ends with its input.

use super::case::Case;
use super::gpu::Gpu;
use super::link;
use super::memory;
use super::sequence::{Effort, Place, Seen};
use crate::common::{id_from_text, local_group_on, Comm, Outcome};
use deepep::capi::deep_ep_backend_t::DEEP_EP_BACKEND_CUDA;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::sync::mpsc::{channel, Receiver, Sender};

pub const MEET_SECONDS: u32 = 60;

/// What a worker is there for.
#[derive(Serialize, Deserialize, Clone)]
pub enum Post {
    /// One rank, on the device of its number.
    Rank { rank: usize, ranks: usize, id: String },
    /// All ranks, as threads that share the first device.
    Shared { ranks: usize },
    /// The links between so many ends.
    Link { ends: usize, shared: bool },
    /// How much memory the size function says.
    Memory,
}

/// What a worker is started with.
#[derive(Serialize, Deserialize, Clone)]
pub struct Orders {
    pub post: Post,
    pub effort: Effort,
}

/// What a rank saw of a case, or why not.
pub type Answer = Result<Seen, String>;
/// Of all ranks of a worker.
pub type Answers = Vec<Answer>;

/// `cases`: by their numbers, which are what is asked for.
pub fn run(orders: &Orders, cases: &[Case]) -> Outcome<()> {
    let effort = &orders.effort;
    match &orders.post {
        Post::Rank { rank, ranks, id } => {
            let meet_ms = MEET_SECONDS * 1000;
            let comm = || {
                Comm::join_on(DEEP_EP_BACKEND_CUDA, *rank, *rank, *ranks, id_from_text(id)?, meet_ms)
                    .map(|comm| vec![comm])
            };
            host(*rank, *rank, *ranks, &comm, effort, cases)
        }
        Post::Shared { ranks } => {
            host(0, 0, *ranks, &|| local_group_on(*ranks, DEEP_EP_BACKEND_CUDA), effort, cases)
        }
        Post::Link { ends, shared } => {
            let amount = if effort.quick { link::QUICK } else { link::FULL };
            once(&|| link::measure(*ends, *shared, amount))
        }
        Post::Memory => once(&memory::symmetric_bytes),
    }
}

/// Is ready, and does one thing once.
fn once<T: Serialize>(work: &dyn Fn() -> Outcome<T>) -> Outcome<()> {
    say(&Outcome::Ok(()))?;
    for line in std::io::stdin().lock().lines() {
        line.map_err(|error| error.to_string())?;
        say(&work())?;
    }
    Ok(())
}

fn say<T: Serialize>(answer: &T) -> Outcome<()> {
    let text = serde_json::to_string(answer).map_err(|error| error.to_string())?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(|error| error.to_string())
}

/// Ranks from `first` on, a thread for each; all of them are asked for each case.
fn host(
    device: usize,
    first: usize,
    ranks: usize,
    comms: &dyn Fn() -> Outcome<Vec<Comm>>,
    effort: &Effort,
    cases: &[Case],
) -> Outcome<()> {
    let start = || Outcome::Ok((Gpu::open(device)?, comms()?));
    let (gpu, comms) = match start() {
        Ok(started) => started,
        Err(error) => return say(&Outcome::<()>::Err(error)),
    };
    std::thread::scope(|scope| {
        let mut seats: Vec<(Sender<usize>, Receiver<Answer>)> = Vec::new();
        for (number, comm) in comms.into_iter().enumerate() {
            let ((ask, asked), (tell, told)) = (channel(), channel());
            scope.spawn(move || rank(gpu, comm, (first + number, ranks), effort, cases, &asked, &tell));
            seats.push((ask, told));
        }
        let hear = || -> Answers {
            let lost = |_| Err("this rank has ended".to_string());
            seats.iter().map(|(_, told)| told.recv().unwrap_or_else(lost)).collect()
        };
        let ready: Outcome<Vec<Seen>> = hear().into_iter().collect();
        say(&ready.map(|_| ()))?;
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| error.to_string())?;
            let case: usize = line.parse().map_err(|_| format!("'{line}' is no case"))?;
            for (ask, _) in &seats {
                let _ = ask.send(case); // who has ended says so when it is heard
            }
            say(&hear())?;
        }
        drop(seats);
        Ok(())
    })
}

/// One rank: is ready, then measures what it is asked for.
fn rank(
    gpu: Gpu,
    comm: Comm,
    (rank, ranks): (usize, usize),
    effort: &Effort,
    cases: &[Case],
    asked: &Receiver<usize>,
    tell: &Sender<Answer>,
) {
    let mut place = match Place::new(gpu, comm, rank, ranks, effort) {
        Ok(place) => place,
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    let _ = tell.send(Ok(Seen::default()));
    for number in asked {
        let seen = match cases.get(number) {
            Some(case) => place.measure(case, effort),
            None => Err(format!("there is no case {number}")),
        };
        let _ = tell.send(seen.map_err(|error| format!("rank {rank}: {error}")));
    }
}
