// Parameters of the slotted layouts. Windows: a dispatch writes row [source][position] of max_tokens rows per source at
// the destination, a combine slot [token][k] at the token's rank. Offsets count from the start of symmetric memory.
#pragma once
#include "params.cuh"

namespace ep {

// By the upper half of a product where the host knows that it is exact; otherwise magic is 0.
__device__ __forceinline__ u32 divide(u32 v, u32 divisor, u32 magic) { return magic ? __umulhi(v, magic) : v / divisor; }

// What a dispatch leaves in recv_positions for a (row, k): no expert of this rank, or one whose slab was full.
enum Place : i32 { NO_EXPERT = -1, DROPPED = -2 };

// What a dispatch leaves in the handle for its receive and its combine, and where experts live.
struct SlottedKept {
    u64 ids;                 // i32[max_tokens][topk]: expert, or -1
    u64 weights;             // f32[max_tokens][topk]
    u64 sent_counts;         // i32[ranks + experts]: tokens sent to each
    u64 recv_counts;         // i32[2][ranks]: rows of each source, then the experts of all its rows (by expert)
    u64 recv_slots;          // i32[ranks][max_tokens]: slot in the source's combine window
    u64 recv_positions;      // i32[ranks][max_tokens][topk]: slab * out_rows + row, or a Place (by expert)
    u64 recv_weights;        // f32[ranks][max_tokens][topk] (by expert)
    u64 own_rows;            // i32[max_tokens]: the token's row in this rank's own slab, or -1
    u64 expert_home;         // u32[experts]: rank << 16 | local id
};

struct SlottedDispatchParams {
    CommParams comm;
    GivenTokens given;
    ReceivedRows out;
    SlottedKept kept;
    u64 record;              // HandleRecord
    u64 told;                // u64[1 + local_experts]: launch << 32 | number, for a host that asks

    // symmetric memory: the dispatch window, chosen by the host
    u64 rows, scales;
    u64 side_ids, side_weights, side_positions, side_slots; // i32, f32, i32 [rows][topk], i32[rows]
    u64 side_counts;         // i32[source][count_stride]: rows, then rows of each local expert

    u32 max_tokens;
    u32 num_topk, num_experts, local_experts, count_stride;
    u32 row_bytes, scale_bytes, scale_stride; // on the wire; rows and scales lie without gaps, scales padded to 16 bytes
    u32 hidden;
    u32 x_dtype, wire_scale_type;
    u32 chunk_words;         // tokens counted at once: 32 per word
    u32 row_warps;           // of a block; the others send what lies beside the rows
    u32 deal_tokens, deal_pieces; // own tokens and pieces of a row from a row warp's piece to its next
    u32 topk_magic;          // divides a pair's number by num_topk
    u32 unit_magic;          // a received unit's by 1 + the pieces of a row (by expert)
    u32 ranks_magic;         // a received row's by ranks (by expert)
    u32 slab_magic;          // a slab row's by out.rows (by expert), a word's of a side output by those of a slab (by rank)
    u32 area;                // 1 + the local area of received rows, or 0
    u32 wire_bytes;          // of a row, for the statistics
    u32 window, flags;
};

struct SlottedCombineParams {
    CommParams comm;
    SlottedKept kept;
    u64 record;

    // this rank's rows, as the dispatch handed them out
    u64 x, x_stride, slot_stride;
    u64 slab_rows;           // rows of a slab that were handed out
    u64 row_weights;         // f32 per row of x, or 0
    u64 topk_weights;        // f32[num_tokens][topk], or 0
    u64 carried;             // f32[slab][slab_rows][topk] (by rank) or f32[slab][slab_rows] (by expert), or 0

    // symmetric memory: the combine window
    u64 rows;                // [max_tokens][topk] rows without gaps
    u64 side_carried;        // f32[max_tokens][topk][topk]

    TokenSums out;

    u32 num_topk, num_experts, max_tokens;
    u32 row_bytes, dtype;
    u32 window;
    u32 pieces, piece_magic; // of a row; and what divides by them, see SlottedCombineTuning
    u32 slab_magic;          // the same for slab_rows
    u32 stash;               // own partial sums that each worker keeps in shared memory while it waits, at least 1
    u32 flags;
};

} // namespace ep
