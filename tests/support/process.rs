//! Ranks as processes: the test program runs itself again, told by its environment which part to play.

use super::world::unique_id;
use deepep::capi::deep_ep_unique_id_t;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const RANK: &str = "DEEP_EP_TEST_RANK";
const RANKS: &str = "DEEP_EP_TEST_RANKS";
const ID: &str = "DEEP_EP_TEST_ID";
/// Marks a line of a child that is meant for its parent.
const MARK: &str = "@@";

/// What a child process is told.
pub struct Part {
    pub rank: usize,
    pub ranks: usize,
    pub id: deep_ep_unique_id_t,
}

/// The part of this process; None: it is the parent.
pub fn part() -> Option<Part> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let hex = std::env::var(ID).ok()?;
    let mut bytes = [0; 128];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(Part { rank: number(RANK)?, ranks: number(RANKS)?, id: deep_ep_unique_id_t { bytes } })
}

/// Tells the parent something.
pub fn say(text: &str) {
    println!("\n{MARK}{text}");
}

/// Waits until the parent says go.
pub fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_string()
}

/// One process per rank. Whatever is left of them ends with this.
pub struct Group {
    pub children: Vec<Member>,
}

pub struct Member {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Group {
    /// Starts `ranks` processes that each run the test `name` of this program.
    pub fn start(name: &str, ranks: usize) -> Group {
        Group::start_some(name, ranks, &(0..ranks).collect::<Vec<_>>())
    }

    /// The same, but only the ranks in `which` come.
    pub fn start_some(name: &str, ranks: usize, which: &[usize]) -> Group {
        let hex: String = unique_id(None).bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let children = which
            .iter()
            .map(|rank| {
                let mut child = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", name, "--nocapture", "--include-ignored", "--test-threads=1"])
                    .env(RANK, rank.to_string())
                    .env(RANKS, ranks.to_string())
                    .env(ID, &hex)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                let lines = BufReader::new(child.stdout.take().unwrap());
                Member { child, lines }
            })
            .collect();
        Group { children }
    }

    /// Every process ends well.
    #[track_caller]
    pub fn succeed(self) {
        self.succeed_but(&[]);
    }

    /// Every process ends well but those in `others`, which have ended otherwise.
    #[track_caller]
    pub fn succeed_but(mut self, others: &[usize]) {
        for (i, member) in self.children.iter_mut().enumerate() {
            if others.contains(&i) {
                continue;
            }
            let status = member.wait(Duration::from_secs(60));
            assert!(status.success(), "process {i}: {status}");
        }
    }
}

impl Member {
    /// The next line that the child says.
    #[track_caller]
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let got = self.lines.read_line(&mut line).unwrap();
            assert!(got > 0, "the process ended without a word");
            if let Some(text) = line.trim().strip_prefix(MARK) {
                return text.to_string();
            }
        }
    }

    pub fn tell(&mut self, text: &str) {
        use std::io::Write;
        writeln!(self.child.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    /// The hard way out: no destructor, no exit handler runs.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> std::process::ExitStatus {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the process still runs after {limit:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for member in &mut self.children {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}
