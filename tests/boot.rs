//! Ranks as processes. Each test starts this binary again as its ranks: the test `rank_process` does nothing
//! unless the environment says which rank to be and what must come of it.

#![allow(clippy::unwrap_used)] // a helper that fails fails its test

use deepep::boot::{Group, UniqueId, UNIQUE_ID_BYTES};
use deepep::error::{Error, Result, Status};
use deepep::mem::Region;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

/// A rank to start: who it is, and what it must find.
#[derive(Clone)]
struct Rank {
    job: &'static str,
    rank: u32,
    num_ranks: u32,
    id: String,
    timeout_ms: u64,
    /// "ok", or status and ranks of the error as `describe` writes them.
    expect: String,
}

impl Rank {
    fn new(rank: u32, num_ranks: u32, id: &UniqueId) -> Self {
        let id = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        Rank { job: "join", rank, num_ranks, id, timeout_ms: 15_000, expect: "ok".to_owned() }
    }

    fn expecting(mut self, expect: &str) -> Self {
        self.expect = expect.to_owned();
        self
    }

    fn start(&self) -> Process {
        let numbers = format!("{} {} {} {}", self.rank, self.num_ranks, self.timeout_ms, self.id);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["rank_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("BOOT_TEST_JOB", self.job)
            .env("BOOT_TEST_NUMBERS", numbers)
            .env("BOOT_TEST_EXPECT", &self.expect)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Process(child)
    }
}

/// Killed when its test fails.
struct Process(Child);

impl Process {
    fn succeed(mut self) {
        assert!(self.0.wait().unwrap().success(), "a rank failed, see above");
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(ranks: &[Rank]) {
    let processes: Vec<Process> = ranks.iter().map(Rank::start).collect();
    processes.into_iter().for_each(Process::succeed);
}

fn describe(error: &Error) -> String {
    format!("{:?} {:?}", error.status, error.ranks)
}

fn path_id(dir: &Path) -> (PathBuf, UniqueId) {
    let path = dir.join("socket");
    let id = UniqueId::create(Some(&format!("unix:{}", path.display()))).unwrap();
    (path, id)
}

/// Waits until rank 0 has taken in `count` connections at `path`.
fn await_connections(path: &Path, count: usize) {
    let start = Instant::now();
    let path = path.display().to_string();
    let connected = |line: &&str| line.ends_with(&path) && line.split_ascii_whitespace().nth(5) == Some("03");
    while std::fs::read_to_string("/proc/net/unix").unwrap().lines().filter(connected).count() < count {
        assert!(start.elapsed() < LONG, "no {count} connections at {path}");
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(150)); // the proofs follow at once
}

#[test]
fn rank_process() {
    let Ok(job) = std::env::var("BOOT_TEST_JOB") else { return };
    let numbers = std::env::var("BOOT_TEST_NUMBERS").unwrap();
    let [rank, num_ranks, timeout, id] = numbers.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{numbers}")
    };
    let (rank, num_ranks) = (rank.parse().unwrap(), num_ranks.parse().unwrap());
    let timeout = Duration::from_millis(timeout.parse().unwrap());
    let bytes: [u8; UNIQUE_ID_BYTES] =
        std::array::from_fn(|i| u8::from_str_radix(&id[2 * i..2 * i + 2], 16).unwrap());
    let id = UniqueId::from_bytes(&bytes).unwrap();
    let result = match &*job {
        "join" => Group::join(rank, num_ranks, &id, timeout).and_then(|group| exercise(&group)),
        "callback" => by_files(rank, num_ranks, &std::env::var("BOOT_TEST_EXPECT").unwrap(), timeout),
        "cycles" => cycles(),
        "fork" => fork(),
        _ => panic!("no job {job}"),
    };
    let expect = std::env::var("BOOT_TEST_EXPECT").unwrap();
    let found = result.as_ref().map_or_else(describe, |()| "ok".to_owned());
    assert!(found == expect || job == "callback" && found == "ok", "rank {rank}: {result:?}, not {expect}");
}

/// What a group of processes must be able to do.
fn exercise(group: &Group) -> Result<()> {
    let ranks = 0..group.num_ranks();
    let payload = |rank: u32, round: u32| vec![(rank * 7 + round) as u8; (rank * 9000 + round) as usize];
    for round in 0..30 {
        let all = group.all_gather(&payload(group.rank(), round), None, LONG)?;
        assert_eq!(all, ranks.clone().map(|rank| payload(rank, round)).collect::<Vec<_>>());
    }
    let mine = Arc::new(Region::create(100_000)?);
    let regions = group.share_region(mine.clone(), None, LONG)?;
    for region in regions.iter().flatten() {
        words(region)[group.rank() as usize].store(u64::from(group.rank()) + 5, Ordering::Release);
    }
    group.all_gather(&[], None, LONG)?;
    for rank in ranks.clone() {
        assert_eq!(words(&mine)[rank as usize].load(Ordering::Acquire), u64::from(rank) + 5);
    }
    // The last rank aborts when the others are through with all that must succeed.
    let last = group.num_ranks() as usize - 1;
    words(regions[last].as_ref().unwrap())[8 + group.rank() as usize].store(1, Ordering::Release);
    if group.rank() as usize == last {
        while ranks.clone().any(|rank| words(&mine)[8 + rank as usize].load(Ordering::Acquire) != 1) {
            std::thread::yield_now();
        }
        group.abort("that will do");
    }
    let error = group.all_gather(&[], None, LONG).unwrap_err();
    assert_eq!(error.text, format!("rank {} aborted: that will do", group.num_ranks() - 1));
    Ok(())
}

fn words(region: &Region) -> &[AtomicU64; 16] {
    // SAFETY: a region has at least a page, mapped as long as it lives, and is used as atomics only.
    unsafe { &*region.as_ptr().cast() }
}

/// The caller's all-gather here is a directory with a file per rank.
fn by_files(rank: u32, num_ranks: u32, dir: &str, timeout: Duration) -> Result<()> {
    let file = |rank| Path::new(dir).join(format!("{rank}"));
    let mut allgather = |mine: &[u8]| {
        let hidden = file(rank).with_extension("new");
        std::fs::write(&hidden, mine).unwrap();
        std::fs::rename(hidden, file(rank)).unwrap();
        let read = |rank| loop {
            if let Ok(bytes) = std::fs::read(file(rank)) {
                break bytes;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        Ok((0..num_ranks).flat_map(read).collect())
    };
    exercise(&Group::join_with(rank, num_ranks, &mut allgather, timeout)?)
}

#[test]
fn every_way_to_meet() {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (path, by_path) = path_id(dir.path());
    let name = format!("unix:@deepep-test-processes-{}", std::process::id());
    let by = |address: &str| UniqueId::create(Some(address)).unwrap();
    let ids = [UniqueId::create(None).unwrap(), by(&format!("127.0.0.1:{port}")), by_path, by(&name)];
    for (id, num_ranks) in ids.iter().zip([5, 3, 2, 4]) {
        run(&(0..num_ranks).map(|rank| Rank::new(rank, num_ranks, id)).collect::<Vec<_>>());
    }
    assert!(!path.exists());
    let rank = |rank| Rank { job: "callback", ..Rank::new(rank, 4, &ids[0]) };
    run(&(0..4).map(|n| rank(n).expecting(dir.path().to_str().unwrap())).collect::<Vec<_>>());
}

#[test]
fn failures_name_their_ranks() {
    let id = || UniqueId::create(None).unwrap();
    let missing = id();
    let expect = "DEEP_EP_TIMEOUT [1, 3]";
    run(&[0, 2].map(|n| Rank { timeout_ms: 700, ..Rank::new(n, 4, &missing) }.expecting(expect)));
    let twice = id();
    run(&[0, 1, 1].map(|n| Rank::new(n, 3, &twice).expecting("DEEP_EP_PEER_FAILED [1]")));
    let other = id();
    let expect = "DEEP_EP_CONFIG_MISMATCH [1]";
    run(&[(0, 3), (1, 4)].map(|(n, of)| Rank::new(n, of, &other).expecting(expect)));
}

#[test]
fn killed_ranks_are_noticed_at_once() {
    for victim in [0u32, 2] {
        let dir = tempfile::tempdir().unwrap();
        let (path, id) = path_id(dir.path());
        let expect = format!("DEEP_EP_PEER_FAILED [{victim}]");
        let rank = |n| Rank::new(n, 4, &id).expecting(&expect).start();
        let doomed = rank(victim);
        let others: Vec<Process> = (0..3).filter(|n| *n != victim).map(rank).collect();
        await_connections(&path, 2);
        let start = Instant::now();
        doomed.kill();
        others.into_iter().for_each(Process::succeed);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        if victim == 0 {
            // The file it left does not stop the next run, which leaves none.
            assert!(path.exists());
            run(&[0, 1].map(|n| Rank::new(n, 2, &id)));
        }
        assert!(!path.exists());
    }
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (path, id) = path_id(dir.path());
    std::fs::write(&path, "precious").unwrap();
    let error = Group::join(0, 2, &id, Duration::from_millis(50)).map(drop).unwrap_err();
    assert_eq!(error.status, Status::DEEP_EP_SYSTEM);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn nothing_remains_of_a_group() {
    run(&[Rank { job: "cycles", ..Rank::new(0, 1, &UniqueId::create(None).unwrap()) }]);
}

/// Descriptors, threads, and mappings of shared memory of this process.
fn holdings() -> [usize; 3] {
    let entries = |dir| std::fs::read_dir(dir).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("memfd:deepep")).count();
    [entries("/proc/self/fd"), entries("/proc/self/task"), shared]
}

fn cycles() -> Result<()> {
    let share = |group: &Group| {
        let region = Arc::new(Region::create(9000).unwrap());
        let all = group.share_region(region, None, LONG).unwrap();
        assert_eq!(all.iter().flatten().count(), group.num_ranks() as usize);
        let fds = group.exchange_fds(&[std::io::stdin().as_fd()], None, LONG).unwrap();
        assert_eq!(fds.iter().flatten().count(), 1);
    };
    let before = holdings();
    for cycle in 0..100 {
        let groups = Group::local(2)?;
        let id = UniqueId::create(None)?;
        // Every tenth group fails, which must leave nothing either.
        let (num_ranks, timeout) = if cycle % 10 == 9 { (3, LONG / 1000) } else { (2, LONG) };
        let join = |rank| match Group::join(rank, num_ranks, &id, timeout) {
            Ok(group) => share(&group),
            Err(error) => assert_eq!(error.status, Status::DEEP_EP_TIMEOUT),
        };
        on_two_threads(|rank| share(&groups[rank as usize]));
        on_two_threads(join);
    }
    assert_eq!(holdings(), before);
    Ok(())
}

fn on_two_threads(work: impl Fn(u32) + Sync) {
    std::thread::scope(|scope| {
        // Joined one by one, since a scope waits for the work only and not for the end of the threads.
        let threads = [0, 1].map(|rank| {
            scope.spawn({
                let work = &work;
                move || work(rank)
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_forked_child_is_no_rank() {
    run(&[Rank { job: "fork", ..Rank::new(0, 1, &UniqueId::create(None).unwrap()) }]);
}

fn fork() -> Result<()> {
    let groups = Group::local(1)?;
    assert!(!groups[0].in_forked_child());
    // SAFETY: the child makes one call of the library and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = groups[0].all_gather(b"", None, LONG).map_err(|error| error.status);
        let told = groups[0].in_forked_child() && refused == Err(Status::DEEP_EP_INVALID_STATE);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    groups[0].all_gather(b"", None, LONG).map(drop)
}
