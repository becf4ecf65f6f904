//! Ranks as processes: this program starts itself once for each rank.

use crate::cases::{patience, Case};
use crate::memory::{Arena, Where};
use crate::ranks::{last_error, ok, report, Buffer};
use crate::run;
use deepep::capi::*;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const RANK: &str = "DEEPEP_GPU_TESTS_RANK";
const ID: &str = "DEEPEP_GPU_TESTS_ID";

pub fn child_rank() -> Option<usize> {
    std::env::var(RANK).ok()?.parse().ok()
}

fn place() -> Where {
    match crate::against_itself() {
        true => Where::Host,
        false => Where::Device,
    }
}

pub fn start(test: &str, ranks: usize) -> Vec<Child> {
    let mut id = deep_ep_unique_id_t { bytes: [0; 128] };
    ok(unsafe { deep_ep_unique_id_create(std::ptr::null(), &mut id) });
    let id: String = id.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let program = std::env::current_exe().unwrap();
    (0..ranks)
        .map(|rank| {
            let mut command = Command::new(&program);
            command.args(["--exact", test, "--nocapture"]);
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

pub fn join(rank: usize, ranks: usize) -> *mut deep_ep_comm_t {
    let text = std::env::var(ID).unwrap();
    let mut config: deep_ep_comm_config_t = unsafe { std::mem::zeroed() };
    ok(unsafe { deep_ep_comm_config_init(&mut config, size_of::<deep_ep_comm_config_t>()) });
    (config.rank, config.num_ranks, config.timeout_ms) = (rank as i32, ranks as i32, 20_000);
    config.backend = match place() {
        Where::Host => deep_ep_backend_t::DEEP_EP_BACKEND_HOST,
        Where::Device => deep_ep_backend_t::DEEP_EP_BACKEND_CUDA,
    } as u32;
    for (i, byte) in config.unique_id.bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    }
    let mut comm = std::ptr::null_mut();
    ok(unsafe { deep_ep_comm_create(&config, &mut comm) });
    comm
}

pub fn buffer(comm: *mut deep_ep_comm_t, config: &deep_ep_buffer_config_t) -> Buffer {
    let mut buffer = std::ptr::null_mut();
    ok(unsafe { deep_ep_buffer_create(comm, config, std::ptr::null(), &mut buffer) });
    Buffer(buffer)
}

/// The parent starts the ranks; each compares what it gets with what the host backend gives that rank.
pub fn parent_or_child(test: &str, case: Case) {
    let Some(rank) = child_rank() else {
        let mut children = start(test, case.ranks);
        let within = Duration::from_secs(40) * patience();
        let ended: Vec<bool> = children.iter_mut().map(|child| end(child, within)).collect();
        assert!(ended.iter().all(|&well| well), "ranks that ended well: {ended:?}");
        return;
    };
    let comm = join(rank, case.ranks);
    let mut config = case.config(place());
    // Processes that share a GPU take turns on it.
    (config.timeout_ms, config.first_timeout_ms) = (10_000 * patience(), 10_000 * patience());
    let outputs = run::run_rank(&case, place(), rank, buffer(comm, &config));
    ok(unsafe { deep_ep_comm_destroy(comm) });
    let expected = run::run(&case, Where::Host).swap_remove(rank);
    crate::compare(&case, &[expected], &[outputs]);
}

/// Rank 1 dies between two barriers: rank 0 names it, and can go on alone.
pub fn kill_one(test: &str) {
    let Some(rank) = child_rank() else {
        let mut children = start(test, 2);
        assert!(end(&mut children[0], Duration::from_secs(30)), "rank 0");
        let _ = end(&mut children[1], Duration::from_secs(1));
        return;
    };
    let comm = join(rank, 2);
    let case = Case { ranks: 2, ..Case::default() };
    let mut config = case.config(Where::Device);
    (config.timeout_ms, config.first_timeout_ms) = (500, 5000);
    let (buffer, arena) = (buffer(comm, &config), Arena::new(Where::Device));
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
    let alone = crate::ranks::World::create(Where::Device, 1).unwrap();
    let buffer = alone.buffers(&Case { ranks: 1, ..case }.config(Where::Device), None)[0];
    ok(meet(buffer));
    ok(meet(buffer));
    ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
}
