//! The processes of one group, as their parent sees them: each is asked, and each has to answer in time.

use super::sequence::Effort;
use super::worker::{Answers, Orders, Post, MEET_SECONDS};
use crate::common::{id_to_text, unique_id, Outcome};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The argument that makes this program a worker.
pub const WORKER: &str = "--worker";
/// A context, random inputs, and the meeting.
const START: Duration = Duration::from_secs(MEET_SECONDS as u64 + 30);
/// To give back what it has; longer, and it is killed.
const END: Duration = Duration::from_secs(10);

struct Member {
    name: String,
    child: Child,
    /// Closed when it is to end.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// Ends with its owner, whatever its members are doing.
pub struct Crew(Vec<Member>);

impl Crew {
    /// A process for each rank, or one for all that share a device.
    pub fn of_ranks(ranks: usize, shared: bool, effort: &Effort) -> Outcome<Crew> {
        if shared {
            return Crew::of(&[("the ranks".into(), Post::Shared { ranks })], effort);
        }
        let id = id_to_text(&unique_id("")?);
        let post = |rank| (format!("rank {rank}"), Post::Rank { rank, ranks, id: id.clone() });
        Crew::of(&(0..ranks).map(post).collect::<Vec<_>>(), effort)
    }

    pub fn of(posts: &[(String, Post)], effort: &Effort) -> Outcome<Crew> {
        let mut crew = Crew(Vec::new());
        for (name, post) in posts {
            crew.0.push(Member::start(name, &Orders { post: post.clone(), effort: *effort })?);
        }
        crew.hear::<Outcome<()>>(START)?.into_iter().collect::<Outcome<Vec<()>>>()?;
        Ok(crew)
    }

    /// What all ranks say to a case.
    pub fn measure(&mut self, case: usize, limit: Duration) -> Answers {
        match self.ask::<Answers>(&case.to_string(), limit) {
            Ok(answers) => answers.concat(),
            Err(error) => vec![Err(error)],
        }
    }

    /// Of each member its answer, or who had none in time.
    pub fn ask<T: DeserializeOwned>(&mut self, line: &str, limit: Duration) -> Outcome<Vec<T>> {
        for member in &mut self.0 {
            let sent =
                member.input.as_mut().map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
            if !matches!(sent, Some(Ok(()))) {
                return Err(member.ended());
            }
        }
        self.hear(limit)
    }

    fn hear<T: DeserializeOwned>(&mut self, limit: Duration) -> Outcome<Vec<T>> {
        let end = Instant::now() + limit;
        let mut answers = Vec::new();
        for member in &mut self.0 {
            let left = end.saturating_duration_since(Instant::now());
            let line = member.lines.recv_timeout(left).map_err(|error| match error {
                RecvTimeoutError::Timeout => format!("{} gave no answer in {:?}", member.name, limit),
                RecvTimeoutError::Disconnected => member.ended(),
            })?;
            answers.push(serde_json::from_str(&line).map_err(|error| format!("{error} in: {line}"))?);
        }
        Ok(answers)
    }

    /// Lets the members end by themselves, for a while.
    pub fn dismiss(mut self) {
        self.0.iter_mut().for_each(|member| member.input = None);
        let end = Instant::now() + END;
        for member in &mut self.0 {
            while Instant::now() < end && matches!(member.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &mut self.0 {
            let _ = member.child.kill();
        }
        for member in &mut self.0 {
            let _ = member.child.wait();
        }
    }
}

impl Member {
    fn start(name: &str, orders: &Orders) -> Outcome<Member> {
        let text = |error: std::io::Error| format!("cannot start {name}: {error}");
        let orders = serde_json::to_string(orders).map_err(|error| error.to_string())?;
        let mut command = Command::new(std::env::current_exe().map_err(text)?);
        command.args(["cuda", WORKER, &orders]).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: one system call on plain numbers, which is allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL); // no GPU stays busy when this process is killed
                Ok(())
            })
        };
        let mut child = command.spawn().map_err(text)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let output = BufReader::new(output?);
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line).ok())
        });
        Ok(Member { name: name.into(), child, input, lines })
    }

    fn ended(&mut self) -> String {
        std::thread::sleep(Duration::from_millis(100)); // its output ends a little before it does
        match self.child.try_wait() {
            Ok(Some(status)) => format!("{} has ended: {status}", self.name),
            _ => format!("{} has closed its output", self.name),
        }
    }
}
