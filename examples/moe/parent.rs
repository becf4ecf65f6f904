//! The process that starts one process per rank, follows them, and never waits for one that is gone.

use crate::common::{id_to_text, unique_id, Outcome};
use crate::message::{self, Message, Report};
use crate::options::Options;
use std::io::{BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// A rank that has not said anything for so long has stopped: its own waits end earlier.
const SILENCE: Duration = Duration::from_secs(90);
/// When one rank has failed, how long the others may take to say what they saw.
const GRACE: Duration = Duration::from_secs(1);

/// The processes; those that still run are killed when this is dropped.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a rank's pipe gave; `None` when it was closed.
type Event = (usize, Outcome<Option<(Message, Vec<u8>)>>);

/// Runs the layer over processes. Returns every rank's report and output rows; `ended` is called with each batch.
pub fn run(options: &Options, text: &[u8], ended: &mut dyn FnMut()) -> Outcome<Vec<(Report, Vec<u8>)>> {
    let id = id_to_text(&unique_id("")?);
    let (sender, events) = channel();
    let mut ranks = Ranks(Vec::new());
    for rank in 0..options.ranks() {
        ranks.0.push(start(options, rank, &id, text, &sender)?);
    }
    drop(sender);
    let mut done: Vec<Option<(Report, Vec<u8>)>> = (0..options.ranks()).map(|_| None).collect();
    while done.iter().any(Option::is_none) {
        let (rank, event) = events.recv_timeout(SILENCE).map_err(|_| silent(&done))?;
        match event? {
            Some((Message::Batch, _)) => ended(),
            Some((Message::Done(report, _), rows)) => done[rank] = Some((report, rows)),
            Some((Message::Failed(text), _)) => {
                return Err(first_cause(&mut ranks, &events, vec![(rank, text)]));
            }
            None if done[rank].is_some() => {}
            None => {
                let how = how_it_ended(&mut ranks.0[rank])?;
                return Err(format!("rank {rank} {how} before its work was done"));
            }
        }
    }
    Ok(done.into_iter().flatten().collect())
}

fn silent(done: &[Option<(Report, Vec<u8>)>]) -> String {
    let waiting: Vec<String> =
        (0..done.len()).filter(|&rank| done[rank].is_none()).map(|rank| rank.to_string()).collect();
    format!("nothing was heard for {} s; still at work: rank {}", SILENCE.as_secs(), waiting.join(", "))
}

/// A rank reports a failure, often only because another is gone: a process that died is the better explanation.
fn first_cause(ranks: &mut Ranks, events: &Receiver<Event>, mut told: Vec<(usize, String)>) -> String {
    let deadline = Instant::now() + GRACE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok((rank, Ok(Some((Message::Failed(text), _))))) => told.push((rank, text)),
            Ok((rank, Ok(None))) if told.iter().all(|(other, _)| *other != rank) => {
                if let Ok(how) = how_it_ended(&mut ranks.0[rank]) {
                    return format!("rank {rank} {how}");
                }
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    told.iter().map(|(rank, text)| format!("rank {rank}: {text}")).collect::<Vec<_>>().join("; ")
}

fn how_it_ended(child: &mut Child) -> Outcome<String> {
    let status = child.wait().map_err(|error| error.to_string())?;
    Ok(describe(status))
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (_, Some(signal)) => format!("was killed by signal {signal}"),
        (Some(code), _) => format!("ended with exit code {code}"),
        _ => "ended".into(),
    }
}

/// Starts a rank, hands it the text, and reads what it tells on a thread of its own.
fn start(options: &Options, rank: usize, id: &str, text: &[u8], events: &Sender<Event>) -> Outcome<Child> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut child = Command::new(program)
        .args(options.for_rank(rank, id))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start rank {rank}: {error}"))?;
    if let (Some(mut pipe), text) = (child.stdin.take(), text.to_vec()) {
        // A rank that dies early does not take the text; its end is told by its other pipe.
        std::thread::spawn(move || pipe.write_all(&text));
    }
    if let (Some(pipe), events) = (child.stdout.take(), events.clone()) {
        std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            loop {
                let event = message::read(&mut pipe);
                let last = !matches!(event, Ok(Some(_)));
                if events.send((rank, event)).is_err() || last {
                    return;
                }
            }
        });
    }
    Ok(child)
}
