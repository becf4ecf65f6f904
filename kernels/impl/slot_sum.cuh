// Slotted combine, on the token's rank: the sum of a token's slots, and of this rank's own rows where these were not
// pushed.
#pragma once
#include "slot_push.cuh"

namespace ep {

// A token's routing, as loaded by the lanes of one warp.
struct SlotRoute {
    i32 id;
    i32 own;                 // row in this rank's own slab, or -1; the same in all lanes
    float weight;
};

__device__ __forceinline__ SlotRoute load_slot_route(const SlottedCombineParams &p, u32 token) {
    SlotRoute r = {-1, -1, 0.0f};
    if (p.flags & OWN_ROWS) r.own = at<const i32>(p.kept.own_rows)[token];
    if (lane_id() >= p.num_topk) return r;
    u64 i = (u64)token * p.num_topk + lane_id();
    r.id = at<const i32>(p.kept.ids)[i];
    if (p.topk_weights) r.weight = __ldg(at<const float>(p.topk_weights) + i);
    return r;
}

// Whether a lane holds the largest k of its rank. All lanes; `rank` FULL where there is no expert.
__device__ __forceinline__ bool leads_rank(const SlotRoute &r, u32 rank) {
    u32 same = ptx::match_any(rank);
    return r.id >= 0 && 31 - __clz((i32)same) == (i32)lane_id();
}

// The rows that enter a token's sum, in order. own: which of them is this rank's partial sum, made here, or FULL.
struct SlotTerms {
    Terms rows;
    u32 own;
    SlabRow own_row;
};

__device__ __forceinline__ SlotTerms slot_terms(const SlottedCombineParams &p, u32 token, const SlotRoute &r) {
    bool exact = p.flags & EXACT;
    SlotTerms t;
    t.own = FULL;
    t.own_row = {p.comm.rank, (u32)r.own, r.own >= 0};
    u32 rank = r.id >= 0 ? expert_home(p.kept.expert_home, r.id).rank : FULL;
    bool mine = rank == p.comm.rank && t.own_row.exists;
    bool leads = leads_rank(r, rank);
    u32 key = exact || p.flags & ASCENDING_K ? lane_id() : rank << 5 | lane_id();
    u64 from = slot_row(p, p.comm.rank, token * p.num_topk + lane_id());
    if (exact && t.own_row.exists) {
        i32 position = expert_position(p, t.own_row);
        if (mine) from = position >= 0 ? expert_row(p, position) : 0;
    }
    bool has = exact ? r.id >= 0 : leads;
    t.rows = make_terms(has, key, from, r.weight);
    u32 own = __ballot_sync(FULL, leads && mine);
    if (exact || !own) return t;
    u32 own_key = __shfl_sync(FULL, key, __ffs((i32)own) - 1);
    t.own = __popc(__ballot_sync(FULL, has && key < own_key));
    return t;
}

// This rank's own partial sum of a token, one piece.
template <class Row, Kind KIND> __device__ __forceinline__ void own_partial(const SlottedCombineParams &p, const SlabRow &row, u32 offset, uint4 (&out)[SLOT_UNITS]) {
    Partial<Row, KIND> partial;
    partial.fetch(p, row, KIND == Kind::BY_RANK ? (i32)NO_EXPERT : expert_position(p, row), offset);
    partial.take(p, offset, out);
}

// 16 bytes of a term that has come: address 0 is a row of zeros.
template <class Row> __device__ __forceinline__ uint4 load_slot(bool present, u64 row, u32 place) {
    if (!present) return neutral<Row>();
    return row ? ptx::load_row16(at<const char>(row + place)) : make_uint4(0, 0, 0, 0);
}

// One piece of a token's sum, four rows in flight.
template <class Row, bool WEIGHTED>
__device__ __forceinline__ void sum_slots(const SlottedCombineParams &p, u32 token, u32 offset, const SlotTerms &t, const uint4 (&own)[SLOT_UNITS]) {
    Sum<Row> sum[SLOT_UNITS];
    u32 place = offset + lane_id() * 16;
#pragma unroll
    for (u32 u = 0; u < SLOT_UNITS; u++) {
        sum[u].clear();
        if (place + u * UNIT < p.row_bytes) start_token<Row>(p, token, place + u * UNIT, sum[u]);
    }
    for (u32 first = 0; first < t.rows.count; first += 4) {
        uint4 v[4][SLOT_UNITS];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u64 row = term_row(t.rows, (first + j) & 31);
            bool wanted = first + j < t.rows.count && first + j != t.own;
#pragma unroll
            for (u32 u = 0; u < SLOT_UNITS; u++) v[j][u] = load_slot<Row>(wanted && place + u * UNIT < p.row_bytes, row, place + u * UNIT);
        }
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            float weight = WEIGHTED ? term_weight(t.rows, (first + j) & 31) : 0.0f;
#pragma unroll
            for (u32 u = 0; u < SLOT_UNITS; u++) sum[u].template add_term<WEIGHTED>(first + j == t.own ? own[u] : v[j][u], weight);
        }
    }
    uint4 out[SLOT_UNITS];
#pragma unroll
    for (u32 u = 0; u < SLOT_UNITS; u++) out[u] = sum[u].rounded();
    store_piece(p, p.out.x + token * p.out.stride, offset, out);
}

// The tokens of one warp: prepared before the peers' rows are here, then summed.
template <class Row, Kind KIND> struct SlotSums {
    u32 pieces, jobs;
    SlotTerms first;

    // Own partial sums that were made ahead wait in shared memory, where the same lanes find them.
    __device__ __forceinline__ uint4 *stash(char *shared, u32 round) const {
        return reinterpret_cast<uint4 *>(shared + (round * (blockDim.x / WARP) + warp_id()) * SLOT_PIECE) + lane_id();
    }

    // The first job last: its terms stay at hand.
    __device__ __forceinline__ void prepare(const SlottedCombineParams &p, u32 tokens, char *shared) {
        pieces = slot_pieces(p);
        jobs = tokens * pieces;
        for (u32 round = p.stash; round-- > 0;) {
            u32 job = slot_warp() + round * slot_warps();
            if (job >= jobs) continue;
            first = slot_terms(p, job / pieces, load_slot_route(p, job / pieces));
            if (KIND == Kind::EXACT || first.own == FULL) continue;
            uint4 own[SLOT_UNITS];
            own_partial<Row, KIND>(p, first.own_row, job % pieces * SLOT_PIECE, own);
#pragma unroll
            for (u32 u = 0; u < SLOT_UNITS; u++) stash(shared, round)[u * WARP] = own[u];
        }
    }

    __device__ __forceinline__ void sum(const SlottedCombineParams &p, char *shared) {
        SlotTerms terms = first;
        u32 round = 0;
        for (u32 job = slot_warp(); job < jobs; round++) {
            u32 token = job / pieces, offset = job % pieces * SLOT_PIECE, next = job + slot_warps();
            SlotRoute route;
            if (next < jobs) route = load_slot_route(p, next / pieces);
            uint4 own[SLOT_UNITS] = {};
            if (KIND != Kind::EXACT && terms.own != FULL) {
                if (round >= p.stash) own_partial<Row, KIND>(p, terms.own_row, offset, own);
#pragma unroll
                for (u32 u = 0; u < SLOT_UNITS; u++)
                    if (round < p.stash) own[u] = stash(shared, round)[u * WARP];
            }
            if (KIND == Kind::EXACT && p.topk_weights)
                sum_slots<Row, true>(p, token, offset, terms, own);
            else
                sum_slots<Row, false>(p, token, offset, terms, own);
            if (offset == 0 && p.out.carried) carry(p, token);
            if (next < jobs) terms = slot_terms(p, next / pieces, route);
            job = next;
        }
    }

    __device__ __forceinline__ void carry(const SlottedCombineParams &p, u32 token) const {
        SlotRoute r = load_slot_route(p, token);
        u32 rank = r.id >= 0 ? expert_home(p.kept.expert_home, r.id).rank : FULL;
        sum_carried(p, token, r.id, leads_rank(r, rank), rank, slot_carried(p, p.comm.rank, token * p.num_topk + lane_id()));
    }
};

} // namespace ep
