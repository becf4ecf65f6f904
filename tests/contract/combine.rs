//! deep_ep_handle_combine, its halves and combine_input: arguments.

use super::one::One;
use super::structs::check_sizes;
use crate::ffi;
use crate::reference::numbers::*;
use crate::reference::{Layout, LAYOUTS};
use crate::support::memory::{Mem, POISON};
use crate::support::*;
use deepep::capi::*;
use std::ptr::{null, null_mut};

#[test]
fn combine_refuses_null() {
    let one = One::new(Layout::PackedByRank).dispatched();
    let (giving, summing) = (one.giving(), one.summing());
    let handle = one.handle.0;
    let mut x = combine_in().x;
    let calls = [
        ffi!(deep_ep_handle_combine(null_mut(), &giving.input, &summing.output, null_mut())),
        ffi!(deep_ep_handle_combine_send(null_mut(), &giving.input, null_mut())),
        ffi!(deep_ep_handle_combine_recv(null_mut(), &summing.output, null_mut())),
        ffi!(deep_ep_handle_combine_input(null_mut(), &mut x, null_mut())),
        ffi!(deep_ep_handle_release(null_mut(), null_mut())),
        ffi!(deep_ep_handle_wait_counts(null_mut(), null_mut(), null_mut(), 0)),
    ];
    assert_eq!(calls, [INVALID_ARGUMENT; 6]);
    refused(
        ffi!(deep_ep_handle_combine(handle, null(), &summing.output, null_mut())),
        INVALID_ARGUMENT,
        &["input", "null"],
    );
    refused(
        ffi!(deep_ep_handle_combine(handle, &giving.input, null(), null_mut())),
        INVALID_ARGUMENT,
        &["output", "null"],
    );
    refused(ffi!(deep_ep_handle_combine_send(handle, null(), null_mut())), INVALID_ARGUMENT, &["input"]);
    refused(
        ffi!(deep_ep_handle_combine_input(handle, null_mut(), null_mut())),
        INVALID_ARGUMENT,
        &["x", "null"],
    );
    one.works();
}

#[test]
fn combine_checks_struct_sizes() {
    for layout in LAYOUTS {
        let one = One::new(layout).dispatched();
        let (giving, summing) = (one.giving(), one.summing());
        check_sizes(
            giving.input,
            |s, size| s.struct_size = size,
            |input| ffi!(deep_ep_handle_combine(one.handle.0, input, &summing.output, null_mut())),
            "deep_ep_handle_combine",
        );
        check_sizes(
            summing.output,
            |s, size| s.struct_size = size,
            |output| ffi!(deep_ep_handle_combine(one.handle.0, &giving.input, output, null_mut())),
            "deep_ep_handle_combine",
        );
        one.combination.check(0, &summing);
        one.works();
    }
}

#[test]
fn combine_refuses_inputs_out_of_range_with_value_and_limit() {
    type Change = fn(&mut deep_ep_combine_in_t);
    let changes: [(Change, &[deep_ep_status_t], &[&str]); 16] = [
        (|i| i.flags = 64, &[INVALID_ARGUMENT], &["flags", "0x40"]),
        (|i| i.hidden = -8, &[INVALID_ARGUMENT], &["hidden", "-8"]),
        (|i| i.hidden = 20, &[INVALID_ARGUMENT], &["hidden", "40", "16"]),
        (|i| i.hidden = 1024, &[CAPACITY_EXCEEDED], &["2048", "256"]),
        (|i| i.hidden = i64::MAX, &[CAPACITY_EXCEEDED, INVALID_ARGUMENT], &["hidden"]),
        (|i| i.x.data = i.x.data.wrapping_byte_add(2), &[INVALID_ARGUMENT], &["x.data", "16"]),
        (|i| i.x.row_stride = 64, &[INVALID_ARGUMENT], &["x.row_stride", "64", "128"]),
        (|i| i.x.row_stride = 136, &[INVALID_ARGUMENT], &["x.row_stride", "136", "16"]),
        (|i| i.x.rows = -1, &[INVALID_ARGUMENT], &["x.rows", "-1"]),
        (|i| i.x.dtype = FP8, &[UNSUPPORTED], &["x.dtype"]),
        (|i| i.x.dtype = OPAQUE, &[UNSUPPORTED], &["x.dtype"]),
        (|i| i.x.dtype = 0, &[INVALID_ARGUMENT], &["x.dtype", "0"]),
        (|i| i.x.dtype = 44, &[INVALID_ARGUMENT], &["x.dtype", "44"]),
        (|i| i.row_weights = std::ptr::without_provenance(2), &[INVALID_ARGUMENT], &["row_weights"]),
        (|i| i.carried_weights = std::ptr::without_provenance(2), &[INVALID_ARGUMENT], &["carried_weights"]),
        (|i| i.topk_weights = std::ptr::without_provenance(4), &[INVALID_ARGUMENT], &["topk_weights"]),
    ];
    for layout in LAYOUTS {
        let one = One::new(layout).dispatched();
        for (change, statuses, words) in changes {
            let mut giving = one.giving();
            let summing = one.summing();
            change(&mut giving.input);
            let before = one.rank().buffer.statistics().epoch;
            let status = one.handle.combine_call(&giving.input, &summing.output);
            assert!(statuses.contains(&status), "{layout:?} {words:?}: {status:?}: {}", last_error());
            refused(status, status, &[&["deep_ep_handle_combine"], words].concat());
            assert_eq!(one.rank().buffer.statistics().epoch, before, "{words:?}: no epoch is consumed");
            assert!(summing.rows.bytes().iter().all(|&byte| byte == POISON), "{words:?}: outputs untouched");
        }
        one.works();
    }
}

#[test]
fn combine_refuses_outputs_that_do_not_fit() {
    type Change = fn(&mut deep_ep_combine_out_t);
    let changes: [(Change, &[&str]); 9] = [
        (|o| o.x.data = null_mut(), &["out.x.data", "null"]),
        (|o| o.x.data = o.x.data.wrapping_byte_add(4), &["x.data", "16"]),
        (|o| o.x.row_stride = 48, &["x.row_stride", "48"]),
        (|o| o.x.row_stride = 130, &["x.row_stride", "130"]),
        (|o| o.x.rows = 2, &["x.rows", "2", "3"]),
        (|o| o.x.dtype = FP32, &["x.dtype"]),
        (|o| o.x.dtype = 21, &["x.dtype", "21"]),
        (|o| o.bias[1] = std::ptr::without_provenance(8), &["bias", "16"]),
        (|o| o.carried_weights = std::ptr::without_provenance_mut(2), &["carried_weights"]),
    ];
    for layout in LAYOUTS {
        let one = One::new(layout).dispatched();
        for (change, words) in changes {
            let giving = one.giving();
            let mut summing = one.summing();
            change(&mut summing.output);
            let status = one.handle.combine_call(&giving.input, &summing.output);
            assert!(
                [INVALID_ARGUMENT, CAPACITY_EXCEEDED, UNSUPPORTED].contains(&status),
                "{layout:?} {words:?}: {status:?}: {}",
                last_error()
            );
            refused(status, status, words);
        }
        one.works();
    }
}

#[test]
fn modes_that_a_layout_does_not_have_are_refused() {
    let weights = Mem::of_f32(&[1.0; 64]);
    for layout in LAYOUTS {
        let one = One::new(layout).dispatched();
        let summing = one.summing();
        let mut giving = one.giving();
        giving.input.flags = 0;
        giving.input.topk_weights = weights.ptr();
        let status = one.handle.combine_call(&giving.input, &summing.output);
        refused(status, INVALID_ARGUMENT, &["topk_weights", "DEEP_EP_COMBINE_EXACT"]);
        if !layout.by_expert() {
            let mut giving = one.giving();
            giving.input.flags = DEEP_EP_COMBINE_EXACT;
            let status = one.handle.combine_call(&giving.input, &summing.output);
            refused(status, UNSUPPORTED, &["DEEP_EP_COMBINE_EXACT"]);
            giving.input.flags = DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH;
            let status = one.handle.combine_call(&giving.input, &summing.output);
            refused(status, INVALID_ARGUMENT, &["DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH"]);
        } else {
            // Two weights for the same place contradict each other.
            let mut giving = one.giving();
            giving.input.row_weights = weights.ptr();
            giving.input.flags = DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH;
            let status = one.handle.combine_call(&giving.input, &summing.output);
            refused(status, INVALID_ARGUMENT, &["row_weights"]);
            let mut giving = one.giving();
            giving.input.topk_weights = weights.ptr();
            giving.input.flags = DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH | DEEP_EP_COMBINE_EXACT;
            let status = one.handle.combine_call(&giving.input, &summing.output);
            refused(status, INVALID_ARGUMENT, &["topk_weights"]);
        }
        one.works();
    }
}

#[test]
fn combine_input_wants_a_type_that_can_be_summed() {
    for layout in LAYOUTS {
        let one = One::new(layout).dispatched();
        for (dtype, statuses) in
            [(0, [INVALID_ARGUMENT; 2]), (FP8, [UNSUPPORTED, INVALID_ARGUMENT]), (77, [INVALID_ARGUMENT; 2])]
        {
            let mut x = combine_in().x;
            x.dtype = dtype;
            let status = ffi!(deep_ep_handle_combine_input(one.handle.0, &mut x, null_mut()));
            assert!(statuses.contains(&status), "{dtype}: {status:?}: {}", last_error());
            refused(status, status, &["x.dtype"]);
        }
        let manner = crate::support::sum::Manner { in_place: true, ..Default::default() };
        one.handle.combine(0, &one.combination, manner);
        one.works();
    }
}

#[test]
fn a_combine_without_hidden_takes_that_of_the_dispatch() {
    for layout in LAYOUTS {
        let one = One::new(layout).dispatched();
        let mut giving = one.giving();
        let summing = one.summing();
        giving.input.hidden = 0;
        ok(one.handle.combine_call(&giving.input, &summing.output));
        one.combination.check(0, &summing);
    }
}
