//! deep_ep_handle_dispatch, _send and _recv: arguments.

use super::one::One;
use super::structs::check_sizes;
use crate::ffi;
use crate::reference::numbers::*;
use crate::reference::{Layout, LAYOUTS};
use crate::support::exchange::Wire;
use crate::support::memory::Mem;
use crate::support::send::Style;
use crate::support::*;
use deepep::capi::*;
use std::ptr::{null, null_mut};

#[test]
fn dispatch_refuses_null() {
    let one = One::new(Layout::PackedByRank);
    let sending = one.sending();
    let mut out = dispatch_out();
    let handle = one.handle.0;
    let calls = [
        (ffi!(deep_ep_handle_dispatch(null_mut(), &sending.input, &mut out, null_mut())), "handle"),
        (ffi!(deep_ep_handle_dispatch_send(null_mut(), &sending.input, null_mut())), "handle"),
        (ffi!(deep_ep_handle_dispatch_recv(null_mut(), &mut out, null_mut())), "handle"),
    ];
    for (status, _) in calls {
        assert_eq!(status, INVALID_ARGUMENT);
    }
    refused(
        ffi!(deep_ep_handle_dispatch(handle, null(), &mut out, null_mut())),
        INVALID_ARGUMENT,
        &["input"],
    );
    refused(
        ffi!(deep_ep_handle_dispatch(handle, &sending.input, null_mut(), null_mut())),
        INVALID_ARGUMENT,
        &["output"],
    );
    refused(ffi!(deep_ep_handle_dispatch_send(handle, null(), null_mut())), INVALID_ARGUMENT, &["input"]);
    refused(
        ffi!(deep_ep_handle_dispatch_recv(handle, null_mut(), null_mut())),
        INVALID_ARGUMENT,
        &["output"],
    );
    assert_eq!(one.rank().buffer.statistics().epoch, 0, "no epoch was consumed");
    one.works();
}

#[test]
fn dispatch_checks_struct_sizes() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        let sending = one.sending();
        check_sizes(
            sending.input,
            |s, size| s.struct_size = size,
            |input| {
                let mut out = dispatch_out();
                let status = ffi!(deep_ep_handle_dispatch(one.handle.0, input, &mut out, null_mut()));
                ok(one.handle.release());
                status
            },
            "deep_ep_handle_dispatch",
        );
        check_sizes(
            dispatch_out(),
            |s, size| s.struct_size = size,
            |out| {
                let status = ffi!(deep_ep_handle_dispatch(one.handle.0, &sending.input, out, null_mut()));
                ok(one.handle.release());
                status
            },
            "deep_ep_handle_dispatch",
        );
        one.works();
    }
}

#[test]
fn dispatch_refuses_inputs_out_of_range_with_value_and_limit() {
    type Change = fn(&mut deep_ep_dispatch_in_t);
    let changes: [(Change, deep_ep_status_t, &[&str]); 22] = [
        (|i| i.num_tokens = -1, INVALID_ARGUMENT, &["num_tokens", "-1"]),
        (|i| i.num_tokens = 4, CAPACITY_EXCEEDED, &["num_tokens", "4", "3"]),
        (|i| i.num_tokens = i64::MAX, CAPACITY_EXCEEDED, &["num_tokens", "3"]),
        (|i| i.hidden = 0, INVALID_ARGUMENT, &["hidden", "0"]),
        (|i| i.hidden = -8, INVALID_ARGUMENT, &["hidden", "-8"]),
        (|i| i.hidden = 60, INVALID_ARGUMENT, &["hidden", "120", "16"]),
        (|i| i.hidden = 72, CAPACITY_EXCEEDED, &["144", "128"]),
        (|i| i.hidden = i64::MAX / 2, INVALID_ARGUMENT, &["hidden"]),
        (|i| i.x.data = null_mut(), INVALID_ARGUMENT, &["x.data", "null"]),
        (|i| i.x.data = i.x.data.wrapping_byte_add(8), INVALID_ARGUMENT, &["x.data", "16"]),
        (|i| i.x.row_stride = 120, INVALID_ARGUMENT, &["x.row_stride", "120"]),
        (|i| i.x.row_stride = -128, INVALID_ARGUMENT, &["x.row_stride", "-128"]),
        (|i| i.x.dtype = 0, INVALID_ARGUMENT, &["x.dtype", "0"]),
        (|i| i.x.dtype = 6, INVALID_ARGUMENT, &["x.dtype", "6"]),
        (|i| i.x.dtype = 99, INVALID_ARGUMENT, &["x.dtype", "99"]),
        (|i| i.x.reserved = 1, INVALID_ARGUMENT, &["x.reserved", "1"]),
        (|i| i.topk_idx = null(), INVALID_ARGUMENT, &["topk_idx", "null"]),
        (|i| i.topk_idx = i.topk_idx.wrapping_byte_add(2), INVALID_ARGUMENT, &["topk_idx"]),
        (|i| i.topk_weights = i.topk_weights.wrapping_byte_add(2), INVALID_ARGUMENT, &["topk_weights"]),
        (|i| i.wire_dtype = 77, INVALID_ARGUMENT, &["wire_dtype", "77"]),
        (|i| i.wire_scale_dtype = 1, INVALID_ARGUMENT, &["wire_scale_dtype", "1"]),
        (|i| i.flags = 8, INVALID_ARGUMENT, &["flags", "8"]),
    ];
    for layout in LAYOUTS {
        let one = One::new(layout);
        for (change, status, words) in changes {
            let mut sending = one.sending();
            change(&mut sending.input);
            let before = one.rank().buffer.statistics().epoch;
            let mut target = one.exchange.target(0, Asked::OWN);
            let found = one.handle.dispatch(&sending.input, &mut target.out);
            assert_eq!(found, status, "{words:?}: {}", last_error());
            refused(found, status, &[&["deep_ep_handle_dispatch"], words].concat());
            let found = one.handle.dispatch_send(&sending.input);
            refused(found, status, &[&["deep_ep_handle_dispatch_send"], words].concat());
            assert_eq!(one.rank().buffer.statistics().epoch, before, "{words:?}: no epoch is consumed");
        }
        one.works();
    }
}

#[test]
fn dispatch_refuses_casts_and_scales_that_do_not_exist() {
    type Change = fn(&mut deep_ep_dispatch_in_t);
    let changes: [(Change, &[deep_ep_status_t], &[&str]); 6] = [
        (|i| i.wire_dtype = FP16, &[UNSUPPORTED, INVALID_ARGUMENT], &["wire_dtype"]),
        (|i| i.x.dtype = FP8, &[INVALID_ARGUMENT], &["x_scales"]),
        (
            |i| {
                i.wire_dtype = FP8;
                i.wire_scale_dtype = SCALE_OPAQUE;
            },
            &[UNSUPPORTED, INVALID_ARGUMENT],
            &["wire_scale_dtype"],
        ),
        (
            |i| {
                i.wire_dtype = FP8;
                i.wire_scale_block = 32;
            },
            &[UNSUPPORTED],
            &["wire_scale_block", "32", "128"],
        ),
        (
            |i| {
                i.x.dtype = OPAQUE;
                i.hidden = 128;
                i.wire_dtype = FP8;
            },
            &[UNSUPPORTED, INVALID_ARGUMENT],
            &["wire_dtype"],
        ),
        (|i| i.wire_scale_block = -1, &[UNSUPPORTED, INVALID_ARGUMENT], &["wire_scale_block"]),
    ];
    let one = One::new(Layout::PackedByExpert);
    for (change, statuses, words) in changes {
        let mut sending = one.sending();
        change(&mut sending.input);
        let status = one.handle.dispatch(&sending.input, &mut dispatch_out());
        assert!(statuses.contains(&status), "{words:?}: {status:?}: {}", last_error());
        refused(status, status, words);
    }
    one.works();
}

#[test]
fn a_claim_of_endless_rows_means_the_capacity() {
    for layout in [Layout::PackedByRank, Layout::PackedByExpert] {
        let one = One::new(layout);
        let mut target = one.exchange.target(0, Asked::OWN);
        target.out.x.rows = i64::MAX;
        ok(one.handle.dispatch(&one.sending().input, &mut target.out));
        ok(ffi!(deep_ep_handle_release(one.handle.0, null_mut())));
        one.works();
    }
}

#[test]
fn dispatch_refuses_outputs_that_do_not_fit() {
    type Change = fn(&mut deep_ep_dispatch_out_t);
    let changes: [(Change, &[&str]); 11] = [
        (|o| o.x.data = o.x.data.wrapping_byte_add(8), &["x.data", "16"]),
        (|o| o.x.row_stride = 8, &["x.row_stride", "8"]),
        (|o| o.x.row_stride = 112, &["x.row_stride", "112"]),
        (|o| o.x.rows = -1, &["x.rows", "-1"]),
        (|o| o.x.dtype = FP16, &["x.dtype"]),
        (|o| o.x.dtype = 50, &["x.dtype", "50"]),
        (|o| o.topk_idx = o.topk_idx.wrapping_byte_add(1), &["topk_idx"]),
        (|o| o.topk_weights = o.topk_weights.wrapping_byte_add(2), &["topk_weights"]),
        (|o| o.row_source = o.row_source.wrapping_byte_add(4), &["row_source"]),
        (|o| o.rank_counts = o.rank_counts.wrapping_byte_add(2), &["rank_counts"]),
        (|o| o.true_rows = o.true_rows.wrapping_byte_add(4), &["true_rows"]),
    ];
    for layout in LAYOUTS {
        let one = One::new(layout);
        for (change, words) in changes {
            let sending = one.sending();
            let mut target = one.exchange.target(0, Asked::OWN);
            change(&mut target.out);
            let before = one.rank().buffer.statistics().epoch;
            let status = one.handle.dispatch(&sending.input, &mut target.out);
            assert_eq!(status, INVALID_ARGUMENT, "{layout:?} {words:?}: {}", last_error());
            refused(status, INVALID_ARGUMENT, words);
            assert_eq!(one.rank().buffer.statistics().epoch, before, "{words:?}: no epoch is consumed");
        }
        one.works();
    }
}

#[test]
fn a_receive_that_is_refused_may_be_repeated() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        one.handle.send(0, &one.exchange, Style::default());
        let mut target = one.exchange.target(0, Asked::OWN);
        target.out.x.row_stride = 8;
        refused(one.handle.dispatch_recv(&mut target.out), INVALID_ARGUMENT, &["x.row_stride", "8"]);
        one.handle.recv(0, &one.exchange, Asked::OWN);
        one.handle.combine(0, &one.combination, Default::default());
    }
}

#[test]
fn slabs_larger_than_the_buffers_or_overlapping_are_refused() {
    for layout in [Layout::SlottedByRank, Layout::SlottedByExpert] {
        let one = One::new(layout);
        let sending = one.sending();
        let mut target = one.exchange.target(0, Asked::OWN);
        target.out.x.rows = 4;
        refused(
            one.handle.dispatch(&sending.input, &mut target.out),
            INVALID_ARGUMENT,
            &["x.rows", "4", "3"],
        );
        let mut target = one.exchange.target(0, Asked::OWN);
        target.out.x.slot_stride = 128;
        refused(
            one.handle.dispatch(&sending.input, &mut target.out),
            INVALID_ARGUMENT,
            &["slot_stride", "128"],
        );
        one.works();
    }
}

#[test]
fn the_number_of_tokens_in_memory_is_clamped() {
    for layout in LAYOUTS {
        for (device, tokens) in [(2, 2), (0, 0), (3, 3), (9, 3), (-4, 0), (i32::MIN, 0), (i32::MAX, 3)] {
            let one = One::new(layout);
            let count = Mem::of_i32(&[device]);
            let mut sending = one.sending();
            sending.input.num_tokens_device = count.ptr();
            let mut fewer = Case::new(layout, &[tokens], 64, 2, 4, |_, t, k| ((t + 2 * k) % 4) as i64);
            fewer.setup.max_tokens = 3;
            let exchange = fewer.exchange();
            let mut target = exchange.target(0, Asked::OWN);
            ok(one.handle.dispatch(&sending.input, &mut target.out));
            exchange.check(0, target);
            let combination = support_combination(&exchange);
            one.handle.combine(0, &combination, Default::default());
        }
    }
}

fn support_combination(exchange: &Exchange) -> Combination {
    Combination::identity(exchange)
}

#[test]
fn cached_dispatch_checks_what_it_is_given() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        let mut sending = one.sending();
        sending.input.flags = DEEP_EP_DISPATCH_CACHED;
        sending.input.topk_idx = null();
        let status = one.handle.dispatch(&sending.input, &mut dispatch_out());
        refused(status, INVALID_STATE, &["DEEP_EP_DISPATCH_CACHED"]);
        one.works();
        let ids = one.sending().input.topk_idx;
        sending.input.topk_idx = ids;
        let status = one.handle.dispatch(&sending.input, &mut dispatch_out());
        refused(status, INVALID_ARGUMENT, &["topk_idx"]);
        sending.input.topk_idx = null();
        sending.input.num_tokens = 2;
        let status = one.handle.dispatch(&sending.input, &mut dispatch_out());
        refused(status, INVALID_ARGUMENT, &["num_tokens", "2", "3"]);
        let again = one.exchange.again(Wire::plain(BF16, 64), vec![None], Payload::Plain { step: 4 });
        one.handle.exchange(0, &again, Style::default(), Asked::OWN);
        one.handle.combine(0, &Combination::identity(&again), Default::default());
    }
}
