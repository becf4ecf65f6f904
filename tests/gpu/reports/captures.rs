//! Calls while a stream is captured.

use super::objects::{on_a_gpu, setup};
use crate::cuda::{self, CaptureMode};
use crate::memory::{Arena, Where};
use crate::ranks::{ok, World};
use crate::stamped::{Rank, Setup};
use crate::stress;
use deepep::capi::*;

/// Counts of what is only captured are not there; the capture goes on, and a replay brings them.
#[test]
fn report_071_counts_are_asked_for_in_a_capture() {
    if !on_a_gpu() {
        return;
    }
    let setup = Setup { ranks: 1, ..setup() };
    let world = World::create(Where::Device, 1).unwrap();
    let seat = world.seats(world.buffers(&setup.config(Where::Device), None)).next().unwrap();
    let mut rank = Rank::new(&setup, Where::Device, seat, 1, 4);
    let inputs = rank.prepare(0..1);
    let graph = cuda::capture(rank.arena.stream(), CaptureMode::Global, || {
        rank.dispatch_in_place(&inputs[0]);
        assert_ne!(rank.wait_counts(30).0, deep_ep_status_t::DEEP_EP_SUCCESS);
    });
    graph.launch(rank.arena.stream());
    rank.arena.wait(); // counts of captured dispatches are not waited for
    let (status, rows) = rank.wait_counts(2000);
    ok(status);
    assert!(rows >= 0);
    rank.keep();
    rank.end_reads();
    rank.check();
    rank.finish();
}

/// A create while a stream is captured is refused or succeeds; the same create works afterwards.
#[test]
fn report_072_a_buffer_is_created_in_a_capture() {
    if !on_a_gpu() {
        return;
    }
    let (world, arena) = (World::create(Where::Device, 2).unwrap(), Arena::new(Where::Device, 0));
    let config = setup().config(Where::Device);
    let mut buffers = [std::ptr::null_mut(); 2];
    let mut create = || unsafe {
        deep_ep_buffer_create_local(world.comms.as_ptr(), &config, std::ptr::null(), buffers.as_mut_ptr())
    };
    let mut status = deep_ep_status_t::DEEP_EP_SUCCESS;
    cuda::during_a_capture(arena.stream(), || status = create());
    eprintln!("a create in a capture: {status:?}");
    if status != deep_ep_status_t::DEEP_EP_SUCCESS {
        ok(create());
    }
    for buffer in buffers {
        ok(unsafe { deep_ep_buffer_destroy(buffer) });
    }
    assert!(stress::run(&setup(), Where::Device));
}
