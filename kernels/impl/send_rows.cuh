// A warp's share of the rows of a block, straight to their final places.
#pragma once
#include "ring.cuh"
#include "routing.cuh"

namespace ep {

// Where one lane sends a token's row, or null.
__device__ __forceinline__ char *row_target(const DispatchParams &p, u32 token, bool expand_own) {
    if (lane_id() >= p.num_topk) return nullptr;
    u64 index = (u64)token * p.num_topk + lane_id();
    i32 id = at<const i32>(p.ids)[index];
    i32 row = at<const i32>(p.positions)[index];
    i32 place = expand_own ? at<const i32>(p.expert_positions)[index] : -1;
    if (id < 0) return nullptr;
    u32 rank = expert_home(p.expert_home, id).rank;
    if (expand_own && rank == p.comm.rank) return (u64)place >= p.out_rows ? nullptr : at<char>(p.out_x + (u64)place * p.out_x_stride);
    return row < 0 ? nullptr : at<char>(peer_base(p.comm, rank) + p.rows + (u64)row * p.row_stride);
}

// The pieces of the tokens of warp `index` of `warps`.
struct RowPieces {
    u64 x, x_stride;
    u32 first, step, count;  // tokens
    u32 row_bytes, piece_bytes, pieces;

    __device__ __forceinline__ u32 token(u32 item) const { return first + item / pieces * step; }
    __device__ __forceinline__ u32 offset(u32 item) const { return item % pieces * piece_bytes; }
    __device__ __forceinline__ u32 bytes(u32 item) const { return min(piece_bytes, row_bytes - offset(item)); }
    __device__ __forceinline__ u32 items() const { return count * pieces; }
    __device__ __forceinline__ Piece operator()(u32 item) const { return {at<const char>(x + (u64)token(item) * x_stride) + offset(item), bytes(item)}; }
};

// cast: whole rows of the input type.
__device__ __forceinline__ RowPieces row_pieces(const DispatchParams &p, Tokens tokens, u32 index, u32 warps, bool cast) {
    RowPieces r;
    r.x = p.x;
    r.x_stride = p.x_stride;
    r.first = tokens.begin + index;
    r.step = warps;
    u32 count = tokens.end - tokens.begin;
    r.count = index < count ? div_up(count - index, warps) : 0;
    r.row_bytes = cast ? p.hidden * float_bytes(p.x_dtype) : p.row_bytes;
    r.piece_bytes = cast ? r.row_bytes : p.piece_bytes;
    r.pieces = div_up(r.row_bytes, r.piece_bytes);
    return r;
}

// Sends them; the ring is primed. expand_own: rows for this rank's experts go to their expert rows at once.
// `progress`: null, or a shared word that tells how many of this warp's tokens have left.
__device__ inline void send_rows(const DispatchParams &p, const Ring &ring, const RowPieces &rows, bool expand_own, u32 *progress) {
    char *next = rows.count ? row_target(p, rows.first, expand_own) : nullptr;
    char *target = nullptr;
    run_ring(
        ring, rows.items(), rows,
        [&](u32 item) {
            if (item % rows.pieces) return;
            target = next;
            if (item + rows.pieces < rows.items()) next = row_target(p, rows.token(item + rows.pieces), expand_own);
        },
        [&](u32 item, const char *stage) {
            if (target) ptx::bulk_store(target + rows.offset(item), stage, rows.bytes(item));
        },
        [&](u32 done) {
            if (progress && lane_id() == 0 && done % rows.pieces == 0) ptx::raise_release_shared(progress, done / rows.pieces);
        });
}

} // namespace ep
