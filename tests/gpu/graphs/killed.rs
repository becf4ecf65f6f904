//! One of two processes is killed in the middle of what its kernels do, eagerly or in a replay: the other names it within
//! its deadline, resets without it, destroys, and goes on alone.

use super::lost::{lose_one, VICTIM};
use super::{CaptureMode, Player};
use crate::cases::{Case, Mode};
use crate::cuda;
use crate::memory::{Arena, Where};
use crate::processes::Environment;
use crate::ranks::{ok, report, World};
use deepep::capi::*;
use std::time::{Duration, Instant};

const SUCCESS: deep_ep_status_t = deep_ep_status_t::DEEP_EP_SUCCESS;
const TIMEOUT: deep_ep_status_t = deep_ep_status_t::DEEP_EP_TIMEOUT;
const TIMEOUT_MS: u32 = 2000;

#[derive(Clone, Copy, PartialEq)]
pub enum Middle {
    Dispatch,
    Combine,
    Replay,
}

/// What runs for longer than a process takes to die, which on a GPU is some 80 ms; and how often.
fn long() -> (Case, usize) {
    let case = Case { ranks: 2, mode: Mode::Caller, ..Case::default() };
    match cuda::is_emulated() {
        true => (case, 8),
        false => (Case { tokens: 4096, hidden: 7168, experts: 64, topk: 8, ..case }, 800),
    }
}

/// Until it is refused.
fn enqueue(player: &Player, middle: Middle, times: usize) {
    let (lane, stream) = (player.lane(0), player.stream());
    lane.load(1);
    let each: Box<dyn Fn() -> deep_ep_status_t + '_> = match middle {
        Middle::Dispatch => Box::new(|| match lane.dispatch_whole(stream) {
            SUCCESS => unsafe { deep_ep_handle_release(lane.handle, stream) },
            refused => refused,
        }),
        Middle::Combine => {
            lane.dispatch(stream);
            Box::new(|| lane.combine_status(stream))
        }
        Middle::Replay => {
            let graph = cuda::capture(stream, CaptureMode::Relaxed, || lane.pair(stream));
            Box::new(move || {
                graph.launch(stream);
                SUCCESS
            })
        }
    };
    let refused = (0..times).map(|_| each()).find(|status| *status != SUCCESS);
    assert!(refused.is_none_or(|status| status == TIMEOUT), "{refused:?}");
    if player.rank == VICTIM {
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    player.arena.wait();
}

pub fn kill_in_the_middle(test: &str, middle: Middle, environment: impl Fn(usize) -> Environment) {
    let (case, times) = long();
    let found = lose_one(test, &case, environment, |player| {
        player.set_timeout(TIMEOUT_MS);
        let begin = Instant::now();
        enqueue(player, middle, times);
        let status = (0..3).map(|_| player.call_status()).find(|status| *status != SUCCESS);
        assert_eq!(status, Some(TIMEOUT));
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
        let found = report(player.buffers[0]);
        assert_eq!((found.first_missing, found.num_missing), (VICTIM as i32, 1));
        ok(unsafe { deep_ep_buffer_reset(player.buffers[0].0, [1u8, 0].as_ptr()) });
        let lane = player.lane(0);
        lane.load(2);
        lane.pair(player.stream());
        player.arena.wait();
        assert_eq!(player.status(), SUCCESS);
        assert!(!lane.is_untouched());
        Vec::new()
    });
    if found.is_some() {
        go_on_alone();
    }
}

/// The context and the process stay usable.
pub fn go_on_alone() {
    let (world, arena) = (World::create(Where::Device, 1).unwrap(), Arena::new(Where::Device, 0));
    let buffer = world.buffers(&Case { ranks: 1, ..Case::default() }.config(Where::Device), None)[0];
    for _ in 0..2 {
        ok(unsafe { deep_ep_buffer_barrier(buffer.0, arena.stream()) });
        arena.wait();
    }
    assert_eq!(report(buffer).status, SUCCESS);
    ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
}
