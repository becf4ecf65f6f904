//! Reports and statistics.

use crate::buffer::{Totals, Traffic};
use crate::capi::types::*;
use crate::capi::{deep_ep_operation_t, deep_ep_phase_t};
use crate::plan::report::Report;
use crate::plan::words::{Operation, Phase};

pub(in crate::capi) fn report(r: &Report) -> deep_ep_report_t {
    deep_ep_report_t {
        struct_size: 0,
        status: r.status,
        operation: operation(r.operation) as u32,
        phase: phase(r.phase) as u32,
        rank: r.rank as i32,
        num_missing: r.missing.len() as i32,
        first_missing: r.missing.first().map_or(-1, |&rank| rank as i32),
        epoch: r.epoch,
        expected: r.expected,
        seen: r.seen,
        row: r.row,
        value: r.value,
        waited_ms: r.waited_ms,
        reserved: 0,
    }
}

fn operation(operation: Option<Operation>) -> deep_ep_operation_t {
    use deep_ep_operation_t::*;
    match operation {
        None => DEEP_EP_OPERATION_NONE,
        Some(Operation::Dispatch) => DEEP_EP_OPERATION_DISPATCH,
        Some(Operation::Combine) => DEEP_EP_OPERATION_COMBINE,
        Some(Operation::Barrier) => DEEP_EP_OPERATION_BARRIER,
    }
}

fn phase(phase: Option<Phase>) -> deep_ep_phase_t {
    use deep_ep_phase_t::*;
    match phase {
        None => DEEP_EP_PHASE_NONE,
        Some(Phase::Enter) => DEEP_EP_PHASE_ENTER,
        Some(Phase::Counts) => DEEP_EP_PHASE_COUNTS,
        Some(Phase::Data) => DEEP_EP_PHASE_DATA,
        Some(Phase::Read) => DEEP_EP_PHASE_READ,
    }
}

pub(in crate::capi) fn statistics(t: &Totals) -> deep_ep_statistics_t {
    deep_ep_statistics_t {
        struct_size: 0,
        epoch: t.epoch,
        dispatches: t.dispatches,
        combines: t.combines,
        barriers: t.barriers,
        entry_barriers: t.entry_barriers,
        rows_sent: t.traffic.rows_sent,
        rows_received: t.traffic.rows_received,
        bytes_sent: t.traffic.bytes_sent,
        bytes_received: t.traffic.bytes_received,
        wait_ns_last: t.traffic.wait_ns_last,
        wait_ns_total: t.traffic.wait_ns_total,
    }
}

pub(in crate::capi) fn peer_statistics(t: &Traffic) -> deep_ep_peer_statistics_t {
    deep_ep_peer_statistics_t {
        struct_size: 0,
        rows_sent: t.rows_sent,
        rows_received: t.rows_received,
        bytes_sent: t.bytes_sent,
        bytes_received: t.bytes_received,
        wait_ns_last: t.wait_ns_last,
        wait_ns_total: t.wait_ns_total,
    }
}
