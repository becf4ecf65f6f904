//! When shared memory is given back.

use super::{runs, set, WAY};
use crate::cases::Case;
use crate::cuda;
use crate::memory::{Arena, Where};
use crate::processes::{child_rank, run_all};
use crate::ranks::{ok, report, Buffer, World};
use deepep::capi::*;
use std::time::{Duration, Instant};

fn barrier(buffer: Buffer, arena: &Arena) {
    ok(unsafe { deep_ep_buffer_barrier(buffer.0, arena.stream()) });
}

fn destroy(buffers: Vec<Buffer>) {
    buffers.iter().for_each(|buffer| ok(unsafe { deep_ep_buffer_destroy(buffer.0) }));
}

fn in_process(way: &str, test: &str, work: impl FnOnce()) {
    match (runs(), child_rank()) {
        (false, _) => {}
        (true, None) => run_all(test, 1, |_| set(&[(WAY, way)])),
        (true, Some(_)) => work(),
    }
}

/// A kernel of one buffer waits for a rank whose turn comes after the other buffer is destroyed.
fn destroy_beside_a_kernel_that_waits() {
    let (world, case) = (World::create(Where::Device, 2).unwrap(), Case { ranks: 2, ..Case::default() });
    let mut config = case.config(Where::Device);
    (config.timeout_ms, config.first_timeout_ms) = (10_000, 10_000);
    let [going, staying] = [0, 1].map(|_| world.buffers(&config, None));
    let arenas = [0, 1].map(|rank| Arena::new(Where::Device, rank));
    barrier(staying[0], &arenas[0]);
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    destroy(going);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    barrier(staying[1], &arenas[1]);
    arenas.iter().for_each(Arena::wait);
    for buffer in &staying {
        assert_eq!(report(*buffer).status, deep_ep_status_t::DEEP_EP_SUCCESS);
    }
    destroy(staying);
}

#[test]
fn destroying_waits_for_no_other_buffer() {
    let test = "sharing::lifetime::destroying_waits_for_no_other_buffer";
    in_process("fd", test, destroy_beside_a_kernel_that_waits);
}

#[test]
fn destroying_waits_for_no_other_buffer_with_legacy_ipc() {
    let test = "sharing::lifetime::destroying_waits_for_no_other_buffer_with_legacy_ipc";
    in_process("ipc", test, destroy_beside_a_kernel_that_waits);
}

/// What cannot be freed beside a kernel that waits is freed later.
#[test]
fn legacy_memory_is_given_back_in_the_end() {
    in_process("ipc", "sharing::lifetime::legacy_memory_is_given_back_in_the_end", || {
        // The driver gives out granules of 2 MiB, and may keep one. A buffer takes more than twice as much.
        const SLACK: usize = 4 << 20;
        let world = World::create(Where::Device, 2).unwrap();
        let config = Case { ranks: 2, hidden: 4096, tokens: 500, ..Case::default() }.config(Where::Device);
        let arenas = [0, 1].map(|rank| Arena::new(Where::Device, rank));
        destroy(world.buffers(&config, None)); // what a first buffer takes beside its memory stays
        let at_first = cuda::free_bytes();
        let staying = world.buffers(&config, None);
        let beside = cuda::free_bytes();
        barrier(staying[0], &arenas[0]);
        std::thread::sleep(Duration::from_millis(50));
        destroy(world.buffers(&config, None));
        assert!(cuda::free_bytes() + SLACK <= beside, "the kernel waits");
        barrier(staying[1], &arenas[1]);
        arenas.iter().for_each(Arena::wait);
        destroy(world.buffers(&config, None));
        assert!(cuda::free_bytes() + SLACK > beside, "{} of {beside}", cuda::free_bytes());
        destroy(staying);
        assert!(cuda::free_bytes() + SLACK > at_first, "{} of {at_first}", cuda::free_bytes());
    });
}
