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
    if (expand_own && rank == p.comm.rank) return place < 0 ? nullptr : at<char>(p.out_x + (u64)place * p.out_x_stride);
    return row < 0 ? nullptr : at<char>(peer_base(p.comm, rank) + p.rows + (u64)row * p.row_stride);
}

// Warp `index` of `warps`. expand_own: rows for this rank's experts go to their expert rows at once.
// `progress`: null, or a shared word that tells how many of this warp's tokens have left.
__device__ inline void send_rows(const DispatchParams &p, const Ring &ring, Tokens tokens, u32 index, u32 warps, bool expand_own, u32 *progress) {
    u32 count = tokens.end - tokens.begin;
    count = index < count ? div_up(count - index, warps) : 0;
    u32 pieces = div_up(p.row_bytes, p.piece_bytes);
    auto token_of = [&](u32 item) { return tokens.begin + index + (item / pieces) * warps; };
    auto offset_of = [&](u32 item) { return (item % pieces) * p.piece_bytes; };
    auto bytes_of = [&](u32 item) { return min(p.piece_bytes, p.row_bytes - offset_of(item)); };
    char *next = count ? row_target(p, token_of(0), expand_own) : nullptr;
    char *target = nullptr;
    run_ring(
        ring, count * pieces,
        [&](u32 item) { return Piece{at<const char>(p.x + (u64)token_of(item) * p.x_stride) + offset_of(item), bytes_of(item)}; },
        [&](u32 item) {
            if (item % pieces) return;
            target = next;
            if (item + pieces < count * pieces) next = row_target(p, token_of(item + pieces), expand_own);
        },
        [&](u32 item, const char *stage) {
            if (target) ptx::bulk_store(target + offset_of(item), stage, bytes_of(item));
        },
        [&](u32 done) {
            if (progress && lane_id() == 0 && done % pieces == 0) ptx::store_release_cta_shared(progress, done / pieces);
        });
}

} // namespace ep
