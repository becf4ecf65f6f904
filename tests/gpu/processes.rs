//! Ranks as processes: this program starts itself once for each rank.

use crate::cases::{patience, Case};
use crate::devices;
use crate::memory::{Arena, Where};
use crate::ranks::{last_error, ok, report, Buffer};
use crate::run;
use deepep::capi::*;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const RANK: &str = "DEEPEP_GPU_TESTS_RANK";
const ID: &str = "DEEPEP_GPU_TESTS_ID";
/// A program and its options, under which ranks run.
const UNDER: &str = "DEEPEP_GPU_TESTS_UNDER";

pub fn child_rank() -> Option<usize> {
    std::env::var(RANK).ok()?.parse().ok()
}

pub fn are_wrapped() -> bool {
    std::env::var_os(UNDER).is_some()
}

/// This program, under another where that is wanted.
fn program() -> Command {
    let program = std::env::current_exe().unwrap();
    let under = std::env::var(UNDER).unwrap_or_default();
    let mut words = under.split_whitespace();
    match words.next() {
        None => Command::new(program),
        Some(outer) => {
            let mut command = Command::new(outer);
            command.args(words).arg(program);
            command
        }
    }
}

fn place() -> Where {
    match crate::against_itself() {
        true => Where::Host,
        false => Where::Device,
    }
}

/// What else a rank's process has in its environment.
pub type Environment = Vec<(&'static str, String)>;

/// All ranks on the first GPU.
pub fn on_one_gpu(_rank: usize) -> Environment {
    vec![(devices::VARIABLE, "1".into())]
}

pub fn as_it_is(_rank: usize) -> Environment {
    Vec::new()
}

pub fn start(test: &str, ranks: usize, environment: impl Fn(usize) -> Environment) -> Vec<Child> {
    let mut id = deep_ep_unique_id_t { bytes: [0; 128] };
    ok(unsafe { deep_ep_unique_id_create(std::ptr::null(), &mut id) });
    let id: String = id.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    (0..ranks)
        .map(|rank| {
            let mut command = program();
            command.args(["--exact", test, "--nocapture"]).envs(environment(rank));
            command.env(RANK, rank.to_string()).env(ID, &id).spawn().unwrap()
        })
        .collect()
}

/// Waits for a child, but not for ever.
pub fn end(child: &mut Child, within: Duration) -> bool {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        if start.elapsed() > within {
            let _ = child.kill();
            let _ = child.wait();
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts the ranks and waits until all have ended well.
pub fn run_all(test: &str, ranks: usize, environment: impl Fn(usize) -> Environment) {
    let mut children = start(test, ranks, environment);
    let within = Duration::from_secs(40) * patience();
    let ended: Vec<bool> = children.iter_mut().map(|child| end(child, within)).collect();
    assert!(ended.iter().all(|&well| well), "ranks that ended well: {ended:?}");
}

pub fn join(rank: usize, ranks: usize) -> *mut deep_ep_comm_t {
    try_join(rank, ranks).unwrap_or_else(|(_, text)| panic!("{text}"))
}

pub fn try_join(rank: usize, ranks: usize) -> Result<*mut deep_ep_comm_t, (deep_ep_status_t, String)> {
    let text = std::env::var(ID).unwrap();
    let mut config: deep_ep_comm_config_t = unsafe { std::mem::zeroed() };
    ok(unsafe { deep_ep_comm_config_init(&mut config, size_of::<deep_ep_comm_config_t>()) });
    (config.rank, config.num_ranks, config.timeout_ms) = (rank as i32, ranks as i32, 20_000);
    config.backend = match place() {
        Where::Host => deep_ep_backend_t::DEEP_EP_BACKEND_HOST,
        Where::Device => deep_ep_backend_t::DEEP_EP_BACKEND_CUDA,
    } as u32;
    config.device = if place() == Where::Device { devices::of(rank) } else { 0 };
    for (i, byte) in config.unique_id.bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    }
    let mut comm = std::ptr::null_mut();
    match unsafe { deep_ep_comm_create(&config, &mut comm) } {
        deep_ep_status_t::DEEP_EP_SUCCESS => Ok(comm),
        status => Err((status, last_error())),
    }
}

pub fn buffer(comm: *mut deep_ep_comm_t, config: &deep_ep_buffer_config_t) -> Buffer {
    let mut buffer = std::ptr::null_mut();
    ok(unsafe { deep_ep_buffer_create(comm, config, std::ptr::null(), &mut buffer) });
    Buffer(buffer)
}

/// The parent starts the ranks; each compares what it gets with what the host backend gives that rank.
pub fn parent_or_child(test: &str, case: Case, environment: impl Fn(usize) -> Environment) {
    match child_rank() {
        None => run_all(test, case.ranks, environment),
        Some(rank) => compare_rank(&case, rank, join(rank, case.ranks)),
    }
}

/// One rank's part of it.
pub fn compare_rank(case: &Case, rank: usize, comm: *mut deep_ep_comm_t) {
    let mut config = case.config(place());
    // Processes that share a GPU take turns on it.
    (config.timeout_ms, config.first_timeout_ms) = (10_000 * patience(), 10_000 * patience());
    let outputs = run::run_rank(case, place(), rank, buffer(comm, &config));
    ok(unsafe { deep_ep_comm_destroy(comm) });
    let expected = run::run(case, Where::Host).swap_remove(rank);
    crate::compare(case, &[expected], &[outputs]);
}

/// Rank 1 dies between two barriers: rank 0 names it, and can go on alone.
pub fn kill_one(test: &str, environment: impl Fn(usize) -> Environment) {
    let Some(rank) = child_rank() else {
        let mut children = start(test, 2, environment);
        assert!(end(&mut children[0], Duration::from_secs(30)), "rank 0");
        let _ = end(&mut children[1], Duration::from_secs(1));
        return;
    };
    let comm = join(rank, 2);
    let case = Case { ranks: 2, ..Case::default() };
    let mut config = case.config(Where::Device);
    (config.timeout_ms, config.first_timeout_ms) = (500, 5000);
    let (buffer, arena) = (buffer(comm, &config), Arena::new(Where::Device, rank));
    let meet = |buffer: Buffer| {
        let status = unsafe { deep_ep_buffer_barrier(buffer.0, arena.stream()) };
        arena.wait();
        status
    };
    ok(meet(buffer));
    if rank == 1 {
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let start = Instant::now();
    ok(meet(buffer));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    let status = meet(buffer);
    assert_eq!(status, deep_ep_status_t::DEEP_EP_TIMEOUT, "{}", last_error());
    assert_eq!((report(buffer).first_missing, report(buffer).epoch), (1, 2));
    ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
    ok(unsafe { deep_ep_comm_destroy(comm) });
    crate::graphs::go_on_alone();
}
