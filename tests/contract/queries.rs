//! Calls that only read.

use super::one::One;
use super::structs::check_sizes;
use crate::ffi;
use crate::reference::{Layout, LAYOUTS};
use crate::support::*;
use deepep::capi::*;
use std::ptr::{null, null_mut};

#[test]
fn statistics_check_their_arguments_and_count() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        let buffer = &one.rank().buffer;
        let mut out = empty_statistics();
        refused(ffi!(deep_ep_buffer_statistics(null(), &mut out)), INVALID_ARGUMENT, &["buffer", "null"]);
        refused(ffi!(deep_ep_buffer_statistics(buffer.0, null_mut())), INVALID_ARGUMENT, &["out", "null"]);
        check_sizes(
            out,
            |s, size| s.struct_size = size,
            |s| ffi!(deep_ep_buffer_statistics(buffer.0, s)),
            "deep_ep_buffer_statistics",
        );
        one.works();
        ok(buffer.barrier());
        let totals = buffer.statistics();
        assert_eq!((totals.dispatches, totals.combines, totals.barriers, totals.epoch), (1, 1, 1, 3));
        assert!(totals.rows_sent >= 3 && totals.bytes_sent >= 3 * 128);
    }
}

#[test]
fn peer_statistics_check_their_arguments() {
    let one = One::new(Layout::PackedByRank);
    let buffer = &one.rank().buffer;
    let mut out = empty_peer_statistics();
    refused(ffi!(deep_ep_buffer_peer_statistics(null(), 0, &mut out)), INVALID_ARGUMENT, &["buffer", "null"]);
    refused(
        ffi!(deep_ep_buffer_peer_statistics(buffer.0, 0, null_mut())),
        INVALID_ARGUMENT,
        &["out", "null"],
    );
    for peer in [-1, 1, i32::MAX] {
        let status = ffi!(deep_ep_buffer_peer_statistics(buffer.0, peer, &mut out));
        refused(status, INVALID_ARGUMENT, &["peer", &peer.to_string()]);
    }
    check_sizes(
        out,
        |s, size| s.struct_size = size,
        |s| ffi!(deep_ep_buffer_peer_statistics(buffer.0, 0, s)),
        "deep_ep_buffer_peer_statistics",
    );
    one.works();
}

#[test]
fn expert_statistics_want_the_number_of_local_experts() {
    for layout in LAYOUTS {
        let one = One::new(layout);
        let buffer = &one.rank().buffer;
        let mut rows = [0u64; 5];
        let mut read = |count| ffi!(deep_ep_buffer_expert_statistics(buffer.0, rows.as_mut_ptr(), count));
        for wrong in [0, 3, 5] {
            refused(read(wrong), INVALID_ARGUMENT, &["count", "4"]);
        }
        ok(read(4));
        let status = ffi!(deep_ep_buffer_expert_statistics(buffer.0, null_mut(), 4));
        refused(status, INVALID_ARGUMENT, &["rows", "null"]);
        let status = ffi!(deep_ep_buffer_expert_statistics(null(), rows.as_mut_ptr(), 4));
        refused(status, INVALID_ARGUMENT, &["buffer", "null"]);
        one.works();
        one.works();
        ok(ffi!(deep_ep_buffer_expert_statistics(buffer.0, rows.as_mut_ptr(), 4)));
        let expected: Vec<u64> =
            one.exchange.arrivals[0].expert_counts.iter().map(|&count| 2 * count as u64).collect();
        assert_eq!(rows[..4], expected[..]);
    }
}

#[test]
fn local_experts_check_their_arguments() {
    let one = One::new(Layout::PackedByRank);
    let buffer = &one.rank().buffer;
    let mut ids = [-5; 4];
    let mut count = 99;
    let read = |ids: *mut i32, room, count: *mut usize| {
        ffi!(deep_ep_buffer_local_experts(buffer.0, ids, room, count))
    };
    refused(read(null_mut(), 0, null_mut()), INVALID_ARGUMENT, &["count", "null"]);
    ok(read(null_mut(), 0, &mut count));
    assert_eq!(count, 4);
    refused(read(ids.as_mut_ptr(), 3, &mut count), INVALID_ARGUMENT, &["capacity", "3", "4"]);
    assert_eq!(ids, [-5; 4], "outputs are written only on success");
    ok(read(ids.as_mut_ptr(), 4, &mut count));
    assert_eq!(ids, [0, 1, 2, 3]);
    let status = ffi!(deep_ep_buffer_local_experts(null(), ids.as_mut_ptr(), 4, &mut count));
    refused(status, INVALID_ARGUMENT, &["buffer", "null"]);
}

#[test]
fn alive_wants_a_byte_for_every_rank() {
    let one = One::new(Layout::PackedByRank);
    let buffer = &one.rank().buffer;
    let mut alive = [9u8; 2];
    for wrong in [0, 2] {
        let status = ffi!(deep_ep_buffer_alive(buffer.0, alive.as_mut_ptr(), wrong));
        refused(status, INVALID_ARGUMENT, &["count", "1"]);
    }
    let status = ffi!(deep_ep_buffer_alive(buffer.0, null_mut(), 1));
    refused(status, INVALID_ARGUMENT, &["alive", "null"]);
    let status = ffi!(deep_ep_buffer_alive(null(), alive.as_mut_ptr(), 1));
    refused(status, INVALID_ARGUMENT, &["buffer", "null"]);
    ok(ffi!(deep_ep_buffer_alive(buffer.0, alive.as_mut_ptr(), 1)));
    assert_eq!(alive, [1, 9]);
}

#[test]
fn a_trace_needs_its_flag() {
    let one = One::new(Layout::PackedByRank);
    let buffer = &one.rank().buffer;
    let mut needed = 5;
    let status = ffi!(deep_ep_buffer_trace(buffer.0, null_mut(), 0, &mut needed));
    refused(status, INVALID_STATE, &["DEEP_EP_BUFFER_TRACE"]);
    let status = ffi!(deep_ep_buffer_trace(null(), null_mut(), 0, &mut needed));
    refused(status, INVALID_ARGUMENT, &["buffer", "null"]);
}

#[test]
fn a_trace_is_json_of_the_size_it_says() {
    let mut one = One::new(Layout::PackedByRank);
    let mut config = one.case.config();
    config.flags = DEEP_EP_BUFFER_TRACE;
    one.handle = {
        one.world = World::new(1, &config);
        one.world.ranks[0].buffer.handle()
    };
    one.works();
    let buffer = &one.rank().buffer;
    let mut needed = 0;
    refused(
        ffi!(deep_ep_buffer_trace(buffer.0, null_mut(), 0, null_mut())),
        INVALID_ARGUMENT,
        &["needed", "null"],
    );
    ok(ffi!(deep_ep_buffer_trace(buffer.0, null_mut(), 0, &mut needed)));
    let mem = memory::Mem::poisoned(needed);
    let status = ffi!(deep_ep_buffer_trace(buffer.0, mem.ptr(), needed - 1, &mut needed));
    refused(status, INVALID_ARGUMENT, &["capacity", &(needed - 1).to_string(), &needed.to_string()]);
    ok(ffi!(deep_ep_buffer_trace(buffer.0, mem.ptr(), needed, &mut needed)));
    mem.check_guards("json");
    let text = std::ffi::CStr::from_bytes_with_nul(mem.bytes()).unwrap().to_str().unwrap();
    assert!(text.trim_start().starts_with(['{', '[']) && text.trim_end().ends_with(['}', ']']));
    for word in ["dispatch", "combine", "\"ph\"", "\"ts\"", "\"pid\""] {
        assert!(text.contains(word), "the trace lacks {word}");
    }
}
