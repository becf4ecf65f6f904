//! Calls in the wrong state, and the windows and areas that run out.

use super::one::One;
use crate::ffi;
use crate::reference::numbers::BF16;
use crate::reference::{Layout, LAYOUTS};
use crate::support::send::Style;
use crate::support::sum::Manner;
use crate::support::*;
use deepep::capi::*;
use std::ptr::null_mut;

fn recv(handle: &Handle) -> deep_ep_status_t {
    handle.dispatch_recv(&mut dispatch_out())
}

#[test]
fn a_receive_needs_its_send() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        refused(recv(&one.handle), INVALID_STATE, &["deep_ep_handle_dispatch_recv", "send"]);
        one.works();
        refused(recv(&one.handle), INVALID_STATE, &["send"]);
        let summing = one.summing();
        let status = ffi!(deep_ep_handle_combine_recv(one.handle.0, &summing.output, null_mut()));
        refused(status, INVALID_STATE, &["deep_ep_handle_combine_recv", "send"]);
        one.works();
    }
}

#[test]
fn a_combine_needs_a_dispatch() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        let (giving, summing) = (one.giving(), one.summing());
        refused(one.handle.combine_call(&giving.input, &summing.output), INVALID_STATE, &["dispatch"]);
        let mut x = combine_in().x;
        x.dtype = BF16;
        let status = ffi!(deep_ep_handle_combine_input(one.handle.0, &mut x, null_mut()));
        refused(status, INVALID_STATE, &["deep_ep_handle_combine_input", "dispatch"]);
        one.works();
    }
}

#[test]
fn between_a_send_and_its_receive_the_handle_is_taken() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        one.handle.send(0, &one.exchange, Style::default());
        refused(one.handle.release(), INVALID_STATE, &["deep_ep_handle_release"]);
        let (giving, summing) = (one.giving(), one.summing());
        let status = one.handle.combine_call(&giving.input, &summing.output);
        assert!([INVALID_STATE, BUSY].contains(&status), "{status:?}");
        let sending = one.sending();
        let status = one.handle.dispatch_send(&sending.input);
        assert!([INVALID_STATE, BUSY].contains(&status), "{status:?}");
        one.handle.recv(0, &one.exchange, Asked::OWN);
        one.handle.combine(0, &one.combination, Manner::default());
        one.works();
    }
}

#[test]
fn a_combine_in_place_needs_its_combine_input_each_time() {
    for layout in LAYOUTS {
        let one = One::new(layout).dispatched();
        let mut input = one.giving().input;
        input.x.data = null_mut();
        let summing = one.summing();
        refused(one.handle.combine_call(&input, &summing.output), INVALID_STATE, &["combine_input"]);
        let giving = one.combination.giving(0, &one.handle, Manner { in_place: true, ..Manner::default() });
        let mut null = giving.input;
        null.x.data = null_mut();
        ok(one.handle.combine_call(&null, &summing.output));
        one.combination.check(0, &summing);
        refused(one.handle.combine_call(&null, &summing.output), INVALID_STATE, &["combine_input"]);
        one.works();
    }
}

#[test]
fn rows_in_place_hold_the_handle_until_combine_or_release() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        let sending = one.sending();
        let mut out = dispatch_out();
        ok(one.handle.dispatch(&sending.input, &mut out));
        let status = one.handle.dispatch(&sending.input, &mut out);
        refused(status, BUSY, &["deep_ep_handle_dispatch", "combine", "release"]);
        ok(one.handle.release());
        ok(one.handle.release());
        ok(one.handle.dispatch(&sending.input, &mut out));
        one.handle.combine(0, &one.combination, Manner::default());
        one.works();
    }
}

#[test]
fn more_open_handles_than_windows_or_areas_are_busy_until_one_is_released() {
    for layout in LAYOUTS {
        let mut one = One::new(layout);
        let mut config = one.case.config();
        config.dispatch_windows = 2;
        one.handle = {
            one.world = World::new(1, &config);
            one.world.ranks[0].buffer.handle()
        };
        let handles: Vec<_> = (0..3).map(|_| one.rank().buffer.handle()).collect();
        let sending = one.sending();
        for handle in &handles[..2] {
            ok(handle.dispatch(&sending.input, &mut dispatch_out()));
        }
        let status = handles[2].dispatch(&sending.input, &mut dispatch_out());
        refused(status, BUSY, &["dispatch_windows"]);
        let epoch = one.rank().buffer.statistics().epoch;
        assert_eq!(epoch, 2, "a call that is busy consumes no epoch");
        ok(handles[0].release());
        ok(handles[2].dispatch(&sending.input, &mut dispatch_out()));
        drop(handles);
        one.works();
    }
}

#[test]
fn a_combine_window_is_reserved_until_its_combine() {
    for layout in LAYOUTS {
        let mut one = One::new(layout);
        let mut config = one.case.config();
        config.combine_windows = 1;
        one.handle = {
            one.world = World::new(1, &config);
            one.world.ranks[0].buffer.handle()
        };
        let other = one.rank().buffer.handle();
        one.handle.exchange(0, &one.exchange, Style::default(), Asked::OWN);
        other.exchange(0, &one.exchange, Style::default(), Asked::OWN);
        let manner = Manner { in_place: true, ..Manner::default() };
        let giving = one.combination.giving(0, &one.handle, manner);
        let mut x = combine_in().x;
        x.dtype = BF16;
        let status = ffi!(deep_ep_handle_combine_input(other.0, &mut x, null_mut()));
        if layout == Layout::SlottedByRank && status == SUCCESS {
            continue; // pushed windows are not reserved by the rows that will be pushed into them
        }
        refused(status, BUSY, &["combine_windows"]);
        let summing = one.summing();
        ok(one.handle.combine_call(&giving.input, &summing.output));
        one.combination.check(0, &summing);
        other.combine(0, &one.combination, manner);
    }
}

#[test]
fn a_struct_filled_in_place_can_be_reused() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        let mut out = dispatch_out();
        for _ in 0..5 {
            let sending = one.sending();
            ok(one.handle.dispatch(&sending.input, &mut out));
            assert!(!out.x.data.is_null() && out.x.dtype == BF16);
            one.handle.combine(0, &one.combination, Manner::default());
        }
    }
}

#[test]
fn destroying_a_handle_with_open_rows_releases_them() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        let sending = one.sending();
        for _ in 0..10 {
            let handle = one.rank().buffer.handle();
            ok(handle.dispatch(&sending.input, &mut dispatch_out()));
            ok(handle.destroy());
        }
        one.works();
    }
}

#[test]
fn a_handle_of_before_a_reset_needs_a_new_dispatch() {
    for layout in LAYOUTS {
        let one = One::new(layout).dispatched();
        ok(one.rank().buffer.reset(None));
        let (giving, summing) = (one.giving(), one.summing());
        refused(one.handle.combine_call(&giving.input, &summing.output), INVALID_STATE, &["dispatch"]);
        one.works();
    }
}
