// Kernel parameters, one plain struct per operation. Pointers are addresses in 64 bits; offsets count from the
// start of a rank's symmetric memory, which has the same layout on every rank.
#pragma once
#include "names.cuh"

namespace ep {

constexpr u32 NEAR_BASES = 8;
constexpr u64 CAPTURED = 1ull << 63;

struct CommParams {
    u64 state;               // BufferState
    u64 control;             // BufferControl
    u64 report;              // HostReport that poisons
    u64 soft_report;         // HostReport that does not
    u64 abort_word;          // host-visible u64: 0, or 1 + the rank that aborted
    u64 peer_bases;          // u64[ranks]: every rank's symmetric memory as mapped here
    u64 near_bases[NEAR_BASES]; // the first of them, by value
    u64 alive;               // u8[ranks]: 0 for a rank that was given up
    u64 signals;             // offset of words[phase][source][turn], one per 64 bytes
    u64 verdicts;            // offset of verdict words [source], one per 64 bytes
    u64 verdict_masks;       // offset of missing masks [source][(ranks + 63) / 64]
    u64 arrivals;            // offset of arrival counters [source], one per 64 bytes (slotted)
    u64 counters;            // Counters
    u64 trace;               // TraceEvent[TRACE_EVENTS] of the host, or 0
    u64 launch;              // unique per enqueued or captured call, not 0; with CAPTURED in graphs
    u32 rank, ranks;
    u32 turns;               // 2 + 2D
    u32 fingerprint;         // 16 bits, operation in the top four
    u32 sync;
    u32 in_flight;           // D: operations that may be unreceived when another is sent
    u64 own;                 // this rank's symmetric memory
};

// What a dispatch sends.
struct GivenTokens {
    u64 x, x_stride;
    u64 x_scales, x_scale_stride, x_scale_col_stride;
    u64 topk_idx, topk_weights;
    u64 num_tokens_device;   // i32, or 0
    u32 num_tokens;
    u32 id_bytes;            // 4 or 8
};

// Where what it receives goes. The strides of slots and scale slots are those of slotted layouts.
struct ReceivedRows {
    u64 x, x_stride, slot_stride;
    u64 scales, scale_row_stride, scale_col_stride, scale_slot_stride;
    u64 ids, weights, source;
    u64 rank_counts, expert_counts, expert_offsets, source_ranges, true_rows;
    u64 rows;                // that the outputs hold, or each slab of them
};

struct DispatchParams {
    CommParams comm;
    GivenTokens given;
    ReceivedRows out;

    // the handle
    u64 record;              // HandleRecord
    u64 ids;                 // i32[max_tokens][topk]: expert, or -1
    u64 weights;             // f32[max_tokens][topk]
    u64 positions;           // i32[max_tokens][topk]: row at the destination for the largest k there, else -1
    u64 expert_positions;    // i32[max_tokens][topk]: expert row at the destination, or -1 (by expert)
    u64 counts;              // i32[ranks][ranks + experts]: the exchanged matrix
    u64 recv_positions;      // i32[max_recv_rows][topk]: expert rows of each received row, or -1 (by expert)
    u64 recv_weights;        // f32[max_recv_rows][topk] (by expert)

    // tables
    u64 expert_home;         // u32[experts]: rank << 16 | local id
    u64 expert_order;        // u32[experts]: experts sorted by (rank, local id)
    u64 rank_first;          // u32[ranks + 1]: where a rank's experts begin in expert_order

    // scratch of the buffer, zeroed at create
    u64 block_counts;        // i32[blocks][ranks + experts]; twice that where the link may overflow
    u64 totals;              // u32[ranks + experts]

    // symmetric memory
    u64 count_regions, count_region_bytes; // i32[source][ranks + experts], by number of the exchange
    u64 progress;            // u64[source][slices + 1]: epoch of the slice of tokens that has arrived; the last word: side data
    u64 rows, row_stride;    // the dispatch window, chosen by the host
    u64 scales, scale_stride;
    u64 side_ids, side_weights, side_source, side_positions; // i32[rows][topk], f32[rows][topk], i64[rows], i32[rows][topk]

    u64 host_counts;         // host-visible i64[experts here + 3]: epoch (written last), rows, expert rows, expert counts; or 0

    u64 max_recv_rows, max_expert_rows;
    u32 max_tokens;
    u32 num_topk, num_experts, local_experts, alignment;
    u32 row_bytes, scale_bytes; // on the wire, without padding
    u32 wire_bytes;          // both, ids, weights and source
    u32 hidden;
    u32 x_dtype, wire_scale_type;
    u32 piece_bytes, stages; // of the ring of one warp
    u32 row_warps, side_warps, expand_warps;
    u32 slice_shift, slices; // tokens per slice = 1 << slice_shift
    u32 count_region_mask;   // regions - 1 (one or two)
    u32 window;
    u32 area;                // 1 + the local area for rows in place, or 0
    u32 flags;
};

// Where a combine's sums go.
struct TokenSums {
    u64 x, stride;
    u64 bias[2];             // rows like those of x, or 0
    u64 carried;             // f32[num_tokens][topk], or 0
};

struct CombineParams {
    CommParams comm;

    u64 record;
    u64 ids, weights, positions, expert_positions, recv_positions, recv_weights, counts; // of the handle
    u64 expert_home, expert_order, rank_first;

    // this rank's rows
    u64 x, x_stride;         // caller memory, the combine window, or the local area (by expert)
    u64 row_weights;         // f32 per row of x, or 0
    u64 topk_weights;        // f32[num_tokens][topk], or 0
    u64 carried;             // f32[rows][topk] (by rank) or f32[rows] (by expert), or 0

    // symmetric memory
    u64 rows, row_stride;    // the combine window
    u64 side_carried;        // f32[rows][topk]
    u64 progress;            // u64[source][slices]
    u64 limits;              // u64[source]: rows of this window of the source's that are expert rows (EXACT)

    TokenSums out;

    u64 max_recv_rows, max_expert_rows;
    u32 num_topk, num_experts, local_experts, alignment;
    u32 row_bytes, dtype;
    u32 window;
    u32 reduce_warps, slices, slice_shift; // rows per slice = 1 << slice_shift
    u32 stages;              // of one warp, through which rows pass on their way to a sum
    u32 flags;
};

struct BarrierParams {
    CommParams comm;
    u32 counted;             // asked for by the caller
};

struct ReleaseParams {
    CommParams comm;
    u64 record;
    u32 abandon;             // also what was sent and not received
};

struct ClaimParams {
    CommParams comm;
    u64 record;
    u32 window;              // a combine window
    u32 pulled;              // peers read it
};

struct ClockParams {
    u64 words;               // ClockWords
    u64 first, questions;    // their numbers
    u64 limit_ns;
};

} // namespace ep
