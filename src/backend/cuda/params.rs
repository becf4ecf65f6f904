//! The structs that kernels and host share, and the numbers in them. `kernels/entry/checks.cuh` is written from these
//! definitions, so that nvcc refuses kernels that lay them out otherwise.

macro_rules! shared_with_kernels {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[allow(dead_code)] // reports are read word by word
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default)]
        pub struct $name { $(pub $field: $type,)* })*

        /// (struct, size, [(field, offset)]) of each.
        #[cfg(test)]
        fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                size_of::<$name>(),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*]
        }
    };
}

macro_rules! numbers_of_kernels {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(#[allow(dead_code)] // the host does not need all of what it relies on
        pub const $name: $type = $value;)*

        #[cfg(test)]
        fn numbers() -> Vec<(&'static str, u64)> {
            vec![$((stringify!($name), $name as u64),)*]
        }
    };
}

numbers_of_kernels! {
    NEAR_BASES: usize = 8;
    CAPTURED: u64 = 1 << 63;
    WORD_BYTES: u64 = 64;
    PHASES: usize = 4;
    MAX_WINDOWS: usize = 8;
    WINDOW_KINDS: usize = 2;
    MAX_STAGES: u32 = 4;
    MAX_WARPS: u32 = 32;
    ZERO_BYTES: u32 = 1024;
    WARP: u32 = 32;
    DISPATCH_WINDOW: u32 = 0;
    COMBINE_WINDOW: u32 = 1;
    CACHED: u32 = 1;
    COPY_OUT: u32 = 2;
    COPY_SCALES: u32 = 1024;
    OWN_ROWS: u32 = 256;
    KEEP_OPEN: u32 = 4;
    CLAIMED: u32 = 8;
    EXACT: u32 = 16;
    WEIGHTS_OF_DISPATCH: u32 = 32;
    ASCENDING_K: u32 = 64;
    LINK_MAY_OVERFLOW: u32 = 128;
    GUARDED: u32 = 512;
    STAMPS: usize = 5;
    TRACE_EVENTS: usize = 1 << 16;
}

/// Bytes of the buffer's state in device memory, which only kernels read.
pub const STATE_BYTES: u64 = 512;
/// Where in it the number of the running launch lies.
pub const OWNER_BYTES: u64 = 384;
/// Bytes of what a dispatch leaves for its receive and its combine.
pub const RECORD_BYTES: u64 = size_of::<HandleRecord>() as u64;

shared_with_kernels! {
    struct CommParams {
        state: u64,
        control: u64,
        report: u64,
        soft_report: u64,
        abort_word: u64,
        peer_bases: u64,
        near_bases: [u64; NEAR_BASES],
        alive: u64,
        signals: u64,
        verdicts: u64,
        verdict_masks: u64,
        arrivals: u64,
        counters: u64,
        trace: u64,
        launch: u64,
        rank: u32,
        ranks: u32,
        turns: u32,
        fingerprint: u32,
        sync: u32,
        in_flight: u32,
        own: u64,
    }

    /// What a dispatch sends.
    struct GivenTokens {
        x: u64,
        x_stride: u64,
        x_scales: u64,
        x_scale_stride: u64,
        x_scale_col_stride: u64,
        topk_idx: u64,
        topk_weights: u64,
        num_tokens_device: u64,
        num_tokens: u32,
        id_bytes: u32,
    }

    /// Where what it receives goes.
    struct ReceivedRows {
        x: u64,
        x_stride: u64,
        slot_stride: u64,
        scales: u64,
        scale_row_stride: u64,
        scale_col_stride: u64,
        scale_slot_stride: u64,
        ids: u64,
        weights: u64,
        source: u64,
        rank_counts: u64,
        expert_counts: u64,
        expert_offsets: u64,
        source_ranges: u64,
        true_rows: u64,
        rows: u64,
    }

    struct DispatchParams {
        comm: CommParams,
        given: GivenTokens,
        out: ReceivedRows,
        record: u64,
        ids: u64,
        weights: u64,
        positions: u64,
        expert_positions: u64,
        counts: u64,
        recv_positions: u64,
        recv_weights: u64,
        expert_home: u64,
        expert_order: u64,
        rank_first: u64,
        block_counts: u64,
        totals: u64,
        count_regions: u64,
        count_region_bytes: u64,
        progress: u64,
        rows: u64,
        row_stride: u64,
        scales: u64,
        scale_stride: u64,
        side_ids: u64,
        side_weights: u64,
        side_source: u64,
        side_positions: u64,
        host_counts: u64,
        max_recv_rows: u64,
        max_expert_rows: u64,
        max_tokens: u32,
        num_topk: u32,
        num_experts: u32,
        local_experts: u32,
        alignment: u32,
        row_bytes: u32,
        scale_bytes: u32,
        wire_bytes: u32,
        hidden: u32,
        x_dtype: u32,
        wire_scale_type: u32,
        piece_bytes: u32,
        stages: u32,
        row_warps: u32,
        side_warps: u32,
        expand_warps: u32,
        slice_shift: u32,
        slices: u32,
        count_region_mask: u32,
        window: u32,
        area: u32,
        flags: u32,
    }

    /// Where a combine's sums go.
    struct TokenSums {
        x: u64,
        stride: u64,
        bias: [u64; 2],
        carried: u64,
    }

    struct CombineParams {
        comm: CommParams,
        record: u64,
        ids: u64,
        weights: u64,
        positions: u64,
        expert_positions: u64,
        recv_positions: u64,
        recv_weights: u64,
        counts: u64,
        expert_home: u64,
        expert_order: u64,
        rank_first: u64,
        x: u64,
        x_stride: u64,
        row_weights: u64,
        topk_weights: u64,
        carried: u64,
        rows: u64,
        row_stride: u64,
        side_carried: u64,
        progress: u64,
        limits: u64,
        out: TokenSums,
        max_recv_rows: u64,
        max_expert_rows: u64,
        num_topk: u32,
        num_experts: u32,
        local_experts: u32,
        alignment: u32,
        row_bytes: u32,
        dtype: u32,
        window: u32,
        reduce_warps: u32,
        slices: u32,
        slice_shift: u32,
        stages: u32,
        flags: u32,
    }

    /// What a slotted dispatch leaves in the handle, and where experts live.
    struct SlottedKept {
        ids: u64,
        weights: u64,
        sent_counts: u64,
        recv_counts: u64,
        recv_slots: u64,
        recv_positions: u64,
        recv_weights: u64,
        own_rows: u64,
        expert_home: u64,
    }

    struct SlottedDispatchParams {
        comm: CommParams,
        given: GivenTokens,
        out: ReceivedRows,
        kept: SlottedKept,
        record: u64,
        told: u64,
        rows: u64,
        scales: u64,
        side_ids: u64,
        side_weights: u64,
        side_positions: u64,
        side_slots: u64,
        side_counts: u64,
        max_tokens: u32,
        num_topk: u32,
        num_experts: u32,
        local_experts: u32,
        count_stride: u32,
        row_bytes: u32,
        scale_bytes: u32,
        scale_stride: u32,
        hidden: u32,
        x_dtype: u32,
        wire_scale_type: u32,
        chunk_words: u32,
        row_warps: u32,
        deal_tokens: u32,
        deal_pieces: u32,
        topk_magic: u32,
        unit_magic: u32,
        ranks_magic: u32,
        slab_magic: u32,
        area: u32,
        wire_bytes: u32,
        window: u32,
        flags: u32,
    }

    struct SlottedCombineParams {
        comm: CommParams,
        kept: SlottedKept,
        record: u64,
        x: u64,
        x_stride: u64,
        slot_stride: u64,
        slab_rows: u64,
        row_weights: u64,
        topk_weights: u64,
        carried: u64,
        rows: u64,
        side_carried: u64,
        out: TokenSums,
        num_topk: u32,
        num_experts: u32,
        max_tokens: u32,
        row_bytes: u32,
        dtype: u32,
        window: u32,
        pieces: u32,
        piece_magic: u32,
        slab_magic: u32,
        stash: u32,
        flags: u32,
    }

    struct BarrierParams {
        comm: CommParams,
        counted: u32,
    }

    struct ReleaseParams {
        comm: CommParams,
        record: u64,
        abandon: u32,
    }

    struct ClaimParams {
        comm: CommParams,
        record: u64,
        window: u32,
        pulled: u32,
    }

    struct Counters {
        epoch: u64,
        dispatches: u64,
        combines: u64,
        barriers: u64,
        entry_barriers: u64,
        wait_last: u64,
        wait_total: u64,
        events: u64,
        stamps: [u64; STAMPS],
    }

    struct PeerCounters {
        rows_sent: u64,
        rows_received: u64,
        bytes_sent: u64,
        bytes_received: u64,
        wait_last: u64,
        wait_total: u64,
    }

    struct TraceEvent {
        begin: u64,
        end: u64,
        what: u64,
        number: u64,
    }

    struct ClockWords {
        asked: u64,
        time: u64,
        answered: u64,
    }

    struct ClockParams {
        words: u64,
        first: u64,
        questions: u64,
        limit_ns: u64,
    }

    /// What the kernels keep of epochs and windows.
    struct BufferWords {
        epoch: u64,
        received: u64,
        sent: [u64; PHASES],
        reads_ended: u64,
        in_flight: u64,
        poisoned: u64,
        ends: [[u64; MAX_WINDOWS]; WINDOW_KINDS],
        acks: [[u64; MAX_WINDOWS]; WINDOW_KINDS],
        areas: u64,
        claimed: u64,
    }

    /// What the kernels keep of a handle's operations.
    struct HandleRecord {
        dispatch_epoch: u64,
        dispatch_turn: u64,
        dispatch_refused: u64,
        combine_epoch: u64,
        combine_turn: u64,
        combine_refused: u64,
        num_tokens: u64,
        rows: u64,
        expert_rows: u64,
        link_rows: u64,
        capacity: u64,
        sent_rows: u64,
        sent_expert_rows: u64,
        told: u64,
        open: u64,
        dispatching: u64,
        combining: u64,
        area: u64,
        claim: u64,
        reserved: [u64; 5],
    }

    struct BufferControl {
        timeout_ns: u64,
        first_timeout_ns: u64,
        first_until: u64,
        soft_cleared: u64,
    }

    /// A bit per missing rank follows it.
    struct HostReport {
        ready: u64,
        epoch: u64,
        expected: u64,
        seen: u64,
        row: i64,
        value: i64,
        waited_ns: u64,
        status: u32,
        operation: u32,
        phase: u32,
        rank: i32,
        num_missing: i32,
        first_missing: i32,
        theirs: u32,
        reserved: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> String {
        let mut text = String::from(
            "// Written from src/backend/cuda/params.rs by `UPDATE_KERNEL_CHECKS=1 cargo test kernel_checks`: what the host takes\n\
             // for granted about the structs and numbers of the kernels.\n#pragma once\n#include \"../impl/dispatch.cuh\"\n#include \"../layout/slotted.cuh\"\n\n\
             namespace ep {\n\n",
        );
        for (name, value) in numbers() {
            text += &format!("static_assert({name} == {value}ull, \"{name}\");\n");
        }
        text += &format!("static_assert(sizeof(BufferState) == {STATE_BYTES}, \"BufferState\");\n");
        text +=
            &format!("static_assert(__builtin_offsetof(BufferState, owner) == {OWNER_BYTES}, \"owner\");\n");
        for (name, size, fields) in layouts() {
            text += &format!("\nstatic_assert(sizeof({name}) == {size}, \"{name}\");\n");
            for (field, offset) in fields {
                text += &format!(
                    "static_assert(__builtin_offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n"
                );
            }
        }
        text + "\n} // namespace ep\n"
    }

    #[test]
    fn kernel_checks_are_those_of_these_structs() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/entry/checks.cuh");
        if std::env::var_os("UPDATE_KERNEL_CHECKS").is_some() {
            std::fs::write(&path, checks()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), checks());
    }
}
