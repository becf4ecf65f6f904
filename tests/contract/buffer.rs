//! deep_ep_buffer_*.

use super::one::One;
use super::structs::check_sizes;
use crate::ffi;
use crate::reference::Layout;
use crate::support::*;
use deepep::capi::*;
use std::ptr::{null, null_mut};

fn good() -> deep_ep_buffer_config_t {
    buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 4, 4, 2)
}

#[test]
fn buffer_size_checks_its_arguments() {
    let comm = &Comm::local(1)[0];
    let mut out = buffer_sizes();
    let config = good();
    refused(
        ffi!(deep_ep_buffer_size(null(), &config, null(), &mut out)),
        INVALID_ARGUMENT,
        &["comm", "null"],
    );
    refused(
        ffi!(deep_ep_buffer_size(comm.0, null(), null(), &mut out)),
        INVALID_ARGUMENT,
        &["config", "null"],
    );
    refused(
        ffi!(deep_ep_buffer_size(comm.0, &config, null(), null_mut())),
        INVALID_ARGUMENT,
        &["out", "null"],
    );
    check_sizes(
        config,
        |c, size| c.struct_size = size,
        |c| ffi!(deep_ep_buffer_size(comm.0, c, null(), &mut out)),
        "deep_ep_buffer_size",
    );
    check_sizes(
        out,
        |c, size| c.struct_size = size,
        |sizes| ffi!(deep_ep_buffer_size(comm.0, &config, null(), sizes)),
        "deep_ep_buffer_size",
    );
    for map in [[0, 0, 0, 1], [-1, 0, 0, 0]] {
        let status = comm.sizes(&config, Some(&map)).err().unwrap();
        refused(status, INVALID_ARGUMENT, &["expert_rank"]);
    }
}

#[test]
fn buffer_create_checks_its_arguments() {
    let comms = Comm::local(1);
    let comm = &comms[0];
    let mut out = null_mut();
    let config = good();
    refused(
        ffi!(deep_ep_buffer_create(null_mut(), &config, null(), &mut out)),
        INVALID_ARGUMENT,
        &["deep_ep_buffer_create", "comm", "null"],
    );
    refused(
        ffi!(deep_ep_buffer_create(comm.0, null(), null(), &mut out)),
        INVALID_ARGUMENT,
        &["config", "null"],
    );
    refused(
        ffi!(deep_ep_buffer_create(comm.0, &config, null(), null_mut())),
        INVALID_ARGUMENT,
        &["out", "null"],
    );
    let mut made = Vec::new();
    check_sizes(
        config,
        |c, size| c.struct_size = size,
        |c| {
            let mut out = null_mut();
            let status = ffi!(deep_ep_buffer_create(comm.0, c, null(), &mut out));
            made.push(Buffer(out));
            status
        },
        "deep_ep_buffer_create",
    );
    type Change = fn(&mut deep_ep_buffer_config_t);
    let changes: [(Change, &[&str]); 9] = [
        (|c| c.reserved = 3, &["reserved", "3"]),
        (|c| c.flags = 4, &["flags", "4"]),
        (|c| c.num_topk = 5, &["num_topk", "5", "4"]),
        (|c| c.max_row_bytes = 0, &["max_row_bytes", "0", "16"]),
        (|c| c.max_row_bytes = i64::MIN, &["max_row_bytes"]),
        (|c| c.max_combine_row_bytes = 40, &["max_combine_row_bytes", "40", "16"]),
        (|c| c.max_expert_rows = 9, &["max_expert_rows", "9"]),
        (|c| c.expert_alignment = 2, &["expert_alignment", "2"]),
        (|c| c.num_sms = 4, &["num_sms", "4"]),
    ];
    for (change, words) in changes {
        let mut config = good();
        change(&mut config);
        let status = Buffer::create(comm, &config, None).err().unwrap();
        assert!([INVALID_ARGUMENT, UNSUPPORTED].contains(&status), "{words:?}: {status:?}");
        refused(status, status, &[&["deep_ep_buffer_create"], words].concat());
    }
    drop(Buffer::create(comm, &config, None).unwrap());
}

#[test]
fn slotted_layouts_take_the_link_capacity_they_have_and_no_other() {
    let comms = Comm::local(2);
    let mut config = buffer_config(deep_ep_layout_t::DEEP_EP_SLOTTED_BY_RANK, 4, 4, 2);
    for rows in [0, 8] {
        config.max_recv_rows = rows;
        drop(Buffer::local(&comms, &config, None).unwrap());
    }
    config.max_recv_rows = 7;
    let status = Buffer::local(&comms, &config, None).err().unwrap();
    refused(status, INVALID_ARGUMENT, &["max_recv_rows", "7", "8"]);
}

#[test]
fn buffer_create_local_wants_one_whole_local_group_in_rank_order() {
    let (a, b) = (Comm::local(2), Comm::local(2));
    let config = good();
    let mut out = [null_mut(); 2];
    let create = |comms: *const *mut deep_ep_comm_t, config: *const _, out: *mut _| {
        ffi!(deep_ep_buffer_create_local(comms, config, null(), out))
    };
    refused(create(null(), &config, out.as_mut_ptr()), INVALID_ARGUMENT, &["comms", "null"]);
    let pair = [a[0].0, a[1].0];
    refused(create(pair.as_ptr(), null(), out.as_mut_ptr()), INVALID_ARGUMENT, &["config", "null"]);
    refused(create(pair.as_ptr(), &config, null_mut()), INVALID_ARGUMENT, &["out", "null"]);
    for comms in [[a[0].0, b[1].0], [a[1].0, a[0].0], [a[0].0, a[0].0], [a[0].0, null_mut()]] {
        refused(create(comms.as_ptr(), &config, out.as_mut_ptr()), INVALID_ARGUMENT, &["comms"]);
    }
    assert!(out.iter().all(|p| p.is_null()));
    drop(Buffer::local(&a, &config, None).unwrap());
}

#[test]
fn calls_on_a_buffer_refuse_null() {
    let mut report = empty_report();
    let mut out = null_mut();
    let calls = [
        ffi!(deep_ep_buffer_barrier(null_mut(), null_mut())),
        ffi!(deep_ep_buffer_report(null(), &mut report, null_mut(), 0)),
        ffi!(deep_ep_buffer_set_timeout(null(), 5)),
        ffi!(deep_ep_buffer_reset(null_mut(), null())),
        ffi!(deep_ep_handle_create(null_mut(), &mut out)),
    ];
    assert_eq!(calls, [INVALID_ARGUMENT; 5]);
    refused(ffi!(deep_ep_buffer_barrier(null_mut(), null_mut())), INVALID_ARGUMENT, &["buffer", "null"]);
    ok(ffi!(deep_ep_buffer_destroy(null_mut())));
    ok(ffi!(deep_ep_handle_destroy(null_mut())));
}

#[test]
fn buffer_report_checks_its_arguments_and_fills_the_missing_ranks() {
    let one = One::new(Layout::PackedByRank);
    let buffer = &one.rank().buffer;
    refused(
        ffi!(deep_ep_buffer_report(buffer.0, null_mut(), null_mut(), 0)),
        INVALID_ARGUMENT,
        &["out", "null"],
    );
    check_sizes(
        empty_report(),
        |r, size| r.struct_size = size,
        |r| ffi!(deep_ep_buffer_report(buffer.0, r, null_mut(), 0)),
        "deep_ep_buffer_report",
    );
    let mut missing = [7; 4];
    let mut report = empty_report();
    ok(ffi!(deep_ep_buffer_report(buffer.0, &mut report, missing.as_mut_ptr(), 3)));
    assert_eq!((missing[0], missing[3]), (-1, 7), "room for three");
    assert_eq!(report.status, SUCCESS);
    one.works();
}

#[test]
fn buffer_set_timeout_wants_at_least_a_millisecond() {
    let one = One::new(Layout::SlottedByRank);
    let buffer = &one.rank().buffer;
    refused(ffi!(deep_ep_buffer_set_timeout(buffer.0, 0)), INVALID_ARGUMENT, &["timeout_ms", "0", "1"]);
    ok(ffi!(deep_ep_buffer_set_timeout(buffer.0, 20_000)));
    one.works();
}

#[test]
fn buffer_reset_wants_the_callers_own_rank_alive() {
    let one = One::new(Layout::PackedByRank);
    refused(one.rank().buffer.reset(Some(&[0])), INVALID_ARGUMENT, &["alive", "0"]);
    ok(one.rank().buffer.reset(Some(&[1])));
    ok(one.rank().buffer.reset(None));
    one.works();
}

#[test]
fn handle_create_refuses_null() {
    let one = One::new(Layout::PackedByExpert);
    let status = ffi!(deep_ep_handle_create(one.rank().buffer.0, null_mut()));
    refused(status, INVALID_ARGUMENT, &["out", "null"]);
    one.works();
}

#[test]
fn reset_masks_that_differ_are_refused_on_every_rank() {
    let config = {
        let mut config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 4, 3, 1);
        config.first_timeout_ms = 1000;
        config
    };
    World::new(3, &config).run(|rank| {
        let masks = [[1, 1, 1], [1, 1, 1], [0, 1, 1]];
        let status = rank.buffer.reset(Some(&masks[rank.rank]));
        assert!([CONFIG_MISMATCH, TIMEOUT].contains(&status), "{status:?}: {}", last_error());
        if rank.rank < 2 {
            assert_eq!(status, CONFIG_MISMATCH, "{}", last_error());
        }
        ok(rank.buffer.reset(None));
        ok(rank.buffer.barrier());
    });
}
