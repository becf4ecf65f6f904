// A warp's share of the rows of a block, straight to their final places.
#pragma once
#include "ring.cuh"
#include "routing.cuh"

namespace ep {

// How a warp sends: expand_own: rows for this rank's experts go to their expert rows at once.
struct Sending {
    Homes homes;
    bool expand_own;
    u32 *progress;           // null, or a shared word: how many of this warp's tokens have left
};

// One lane's pair of a token, as routing has left it. Read a row ahead: memory is slow beside rows on their way.
struct Sent {
    i32 id, row, place;
};

__device__ __forceinline__ Sent load_sent(const DispatchParams &p, u32 token, bool expand_own) {
    if (lane_id() >= p.num_topk) return {-1, -1, -1};
    u64 i = (u64)token * p.num_topk + lane_id();
    return {at<const i32>(p.ids)[i], at<const i32>(p.positions)[i], expand_own ? at<const i32>(p.expert_positions)[i] : -1};
}

// Where a lane sends the token's row, or null.
__device__ __forceinline__ char *row_target(const DispatchParams &p, const Sending &sending, const Sent &s) {
    if (s.id < 0) return nullptr;
    u32 rank = sending.homes[s.id].rank;
    if (sending.expand_own && rank == p.comm.rank)
        return (u64)s.place >= p.out.rows ? nullptr : at<char>(p.out.x + (u64)s.place * p.out.x_stride);
    return s.row < 0 ? nullptr : at<char>(peer_base(p.comm, rank) + p.rows + (u64)s.row * p.row_stride);
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
    r.x = p.given.x;
    r.x_stride = p.given.x_stride;
    r.first = tokens.begin + index;
    r.step = warps;
    u32 count = tokens.end - tokens.begin;
    r.count = index < count ? div_up(count - index, warps) : 0;
    r.row_bytes = cast ? p.hidden * float_bytes(p.x_dtype) : p.row_bytes;
    r.piece_bytes = cast ? r.row_bytes : p.piece_bytes;
    r.pieces = div_up(r.row_bytes, r.piece_bytes);
    return r;
}

// Tells that the first `done` tokens of a warp have left, once for each slice: a release waits for loads on their way.
// `first`: of the warp's tokens, from the block's begin, where a slice begins.
__device__ __forceinline__ void tell_sent(const DispatchParams &p, const Sending &sending, const RowPieces &rows, u32 first, u32 done) {
    if (!sending.progress || lane_id() != 0 || !done) return;
    u32 next = first + done * rows.step;
    if (done == rows.count || next >> p.slice_shift != (next - rows.step) >> p.slice_shift) ptx::raise_release_shared(sending.progress, done);
}

// Sends them; the ring is primed.
__device__ inline void send_rows(const DispatchParams &p, const Ring &ring, const RowPieces &rows, const Sending &sending) {
    Sent next = rows.count ? load_sent(p, rows.first, sending.expand_own) : Sent{-1, -1, -1};
    char *target = nullptr;
    run_ring(
        ring, rows.items(), rows,
        [&](u32 item) {
            if (item % rows.pieces) return;
            target = row_target(p, sending, next);
            if (item + rows.pieces < rows.items()) next = load_sent(p, rows.token(item + rows.pieces), sending.expand_own);
        },
        [&](u32 item, const char *stage) {
            if (target) ptx::bulk_store(target + rows.offset(item), stage, rows.bytes(item));
        },
        [&](u32 done) {
            if (done % rows.pieces == 0) tell_sent(p, sending, rows, warp_id(), done / rows.pieces);
        });
}

} // namespace ep
