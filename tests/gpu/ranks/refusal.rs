//! Waits that end, and calls that are refused.

use super::{last_error, ok, report, Buffer, World};
use crate::cases::Case;
use crate::memory::{Arena, Where};
use deepep::capi::*;
use std::time::Instant;

fn barrier(buffer: Buffer, arena: &Arena) -> deep_ep_status_t {
    unsafe { deep_ep_buffer_barrier(buffer.0, arena.stream()) }
}

pub fn missing_rank() {
    let (world, case) = (World::create(Where::Device, 4).unwrap(), Case { ranks: 4, ..Case::default() });
    let mut config = case.config(Where::Device);
    (config.timeout_ms, config.first_timeout_ms) = (150, 300);
    let buffers = world.buffers(&config, None);
    let arenas: Vec<Arena> = (0..4).map(|rank| Arena::new(Where::Device, rank)).collect();
    let start = Instant::now();
    for rank in [0, 1, 3] {
        ok(barrier(buffers[rank], &arenas[rank]));
    }
    arenas.iter().for_each(Arena::wait);
    assert!(start.elapsed().as_millis() < 2000, "{:?}", start.elapsed());
    for rank in [0, 1, 3] {
        let status = barrier(buffers[rank], &arenas[rank]);
        assert_eq!(status, deep_ep_status_t::DEEP_EP_TIMEOUT, "{}", last_error());
        let report = report(buffers[rank]);
        assert_eq!(report.status, deep_ep_status_t::DEEP_EP_TIMEOUT);
        assert_eq!((report.num_missing, report.first_missing, report.rank), (1, 2, rank as i32));
        assert_eq!((report.epoch, report.expected, report.seen), (1, 1, 0));
    }
    for buffer in buffers {
        ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
    }
    // The context and the process stay usable.
    let alone = World::create(Where::Device, 1).unwrap();
    let buffer = alone.buffers(&Case { ranks: 1, ..case }.config(Where::Device), None)[0];
    ok(barrier(buffer, &arenas[0]));
    arenas[0].wait();
    ok(barrier(buffer, &arenas[0]));
    arenas[0].wait();
    assert_eq!(report(buffer).status, deep_ep_status_t::DEEP_EP_SUCCESS);
    ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
}

pub fn abort() {
    let (world, case) = (World::create(Where::Device, 3).unwrap(), Case { ranks: 3, ..Case::default() });
    let buffers = world.buffers(&case.config(Where::Device), None);
    let arenas: Vec<Arena> = (0..3).map(|rank| Arena::new(Where::Device, rank)).collect();
    let start = Instant::now();
    for rank in [0, 1] {
        ok(barrier(buffers[rank], &arenas[rank]));
    }
    ok(unsafe { deep_ep_comm_abort(world.comms[2], c"enough".as_ptr()) });
    arenas.iter().for_each(Arena::wait);
    assert!(start.elapsed().as_millis() < 3000, "{:?}", start.elapsed());
    for rank in [0, 1] {
        let status = barrier(buffers[rank], &arenas[rank]);
        assert_eq!(status, deep_ep_status_t::DEEP_EP_ABORTED, "{}", last_error());
        assert!(last_error().contains("enough"), "{}", last_error());
        assert_eq!(report(buffers[rank]).first_missing, 2);
    }
    for buffer in buffers {
        ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
    }
}

pub fn unsupported() {
    let world = World::create(Where::Device, 1).unwrap();
    let case = Case { ranks: 1, ..Case::default() };
    let refused = |change: &dyn Fn(&mut deep_ep_buffer_config_t), word: &str| {
        let mut config = case.config(Where::Device);
        change(&mut config);
        let mut buffer = std::ptr::null_mut();
        let status = unsafe { deep_ep_buffer_create(world.comms[0], &config, std::ptr::null(), &mut buffer) };
        assert_eq!(status, deep_ep_status_t::DEEP_EP_UNSUPPORTED, "{word}");
        assert!(last_error().contains(word), "{}", last_error());
    };
    refused(&|config| config.flags = DEEP_EP_BUFFER_REFUSE_BAD_IDS, "REFUSE_BAD_IDS");
    refused(&|config| config.dispatch_windows = 9, "dispatch_windows");
}
