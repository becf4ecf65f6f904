// Slotted combine, on the token's rank: the sum of a token's slots, and of this rank's own rows where these were not
// pushed.
#pragma once
#include "slot_push.cuh"

namespace ep {

// A token's routing, as loaded by the lanes of one warp in two steps.
struct SlotRoute {
    i32 id;
    i32 own;                 // row in this rank's own slab, or -1; the same in all lanes
    float weight;
    u32 rank;                // of the lane's expert, FULL where there is none
    LaneExpert expert;       // of the own row (by expert)
};

template <Kind KIND> __device__ __forceinline__ SlotRoute ask_for_route(const SlottedCombineParams &p, u32 token) {
    SlotRoute r = {-1, -1, 1.0f, FULL, {NO_EXPERT, 1.0f}};
    if (p.flags & OWN_ROWS) r.own = (i32)ptx::load_ahead(at<const u32>(p.kept.own_rows) + token);
    if (lane_id() >= p.num_topk) return r;
    u64 i = (u64)token * p.num_topk + lane_id();
    r.id = (i32)ptx::load_ahead(at<const u32>(p.kept.ids) + i);
    if (KIND == Kind::EXACT && p.topk_weights) r.weight = __ldg(at<const float>(p.topk_weights) + i);
    return r;
}

// What the first step has led to.
template <Kind KIND> __device__ __forceinline__ void follow_route(const SlottedCombineParams &p, SlotRoute &r) {
    if (r.id >= 0) r.rank = ptx::load_ahead(at<const u32>(p.kept.expert_home) + r.id) >> 16;
    if (KIND != Kind::BY_RANK && r.own >= 0) r.expert = ask_for_expert(p, {p.comm.rank, (u32)r.own});
}

// Whether a lane holds the largest k of its rank. All lanes.
__device__ __forceinline__ bool leads_rank(const SlotRoute &r) {
    u32 same = ptx::match_any(r.rank);
    return r.id >= 0 && 31 - __clz((i32)same) == (i32)lane_id();
}

// The rows that enter a token's sum, in order. own: which of them is this rank's partial sum, made here, or FULL.
struct SlotTerms {
    Terms rows;
    u32 own;
};

template <Kind KIND> __device__ __forceinline__ SlotTerms slot_terms(const SlottedCombineParams &p, u32 token, const SlotRoute &r) {
    constexpr bool EVERY = KIND == Kind::EXACT;
    bool mine = r.rank == p.comm.rank && r.own >= 0, leads = leads_rank(r), has = EVERY ? r.id >= 0 : leads;
    u32 key = EVERY || p.flags & ASCENDING_K ? lane_id() : r.rank << 5 | lane_id();
    u64 from = slot_row(p, p.comm.rank, token * p.num_topk + lane_id());
    if (EVERY && mine) from = r.expert.position >= 0 ? expert_row(p, r.expert.position) : 0;
    SlotTerms t = {make_terms(has, key, from, r.weight), FULL};
    u32 own = EVERY ? 0 : __ballot_sync(FULL, leads && mine);
    if (!own) return t;
    u32 own_key = __shfl_sync(FULL, key, __ffs((i32)own) - 1);
    t.own = __popc(__ballot_sync(FULL, has && key < own_key));
    return t;
}

// Own partial sums that were made ahead wait in shared memory, where the same lanes find them.
__device__ __forceinline__ uint4 *stash_of(char *shared, u32 round) {
    return reinterpret_cast<uint4 *>(shared + (round * (worker_threads() / WARP) + warp_id()) * SLOT_PIECE) + lane_id();
}

// This rank's own partial sum of a token, one piece.
template <class Row, Kind KIND> __device__ __forceinline__ void make_own(const SlottedCombineParams &p, const SlotRoute &r, u32 offset, uint4 *stash) {
    if (KIND == Kind::EXACT) return;
    Partial<Row, KIND> partial;
    uint4 own[SLOT_UNITS];
    partial.fetch(p, {p.comm.rank, (u32)r.own}, r.expert, offset);
    partial.take(p, own);
#pragma unroll
    for (u32 u = 0; u < SLOT_UNITS; u++) stash[u * WARP] = own[u];
}

// A piece of the j-th term. Address 0 is a row of zeros.
__device__ __forceinline__ void load_slot(const SlottedCombineParams &p, const SlotTerms &t, u32 j, u32 offset, const uint4 *stash, uint4 (&v)[SLOT_UNITS]) {
    u64 row = term_row(t.rows, j);
    if (j == t.own) {
#pragma unroll
        for (u32 u = 0; u < SLOT_UNITS; u++) v[u] = stash[u * WARP];
    } else if (row) {
        load_piece(p, row, offset, v);
    } else {
        clear_piece(v);
    }
}

// One piece of a token's sum, four rows in flight.
template <class Row> __device__ __forceinline__ void sum_slots(const SlottedCombineParams &p, u32 token, u32 offset, const SlotTerms &t, const uint4 *stash) {
    constexpr u32 TERMS = 4;
    uint4 v[TERMS][SLOT_UNITS];
    PieceSum<Row> sum;
    u32 place = offset + lane_id() * 16, count = t.rows.count;
    for (u32 first = 0;;) {
#pragma unroll
        for (u32 j = 0; j < TERMS; j++) {
            if (first + j >= count) break;
            load_slot(p, t, first + j, offset, stash, v[j]);
        }
        if (first == 0) {
#pragma unroll
            for (u32 u = 0; u < SLOT_UNITS; u++) start_token<Row>(p, token, min(place + u * UNIT, p.row_bytes - 16), sum.sum[u]);
        }
#pragma unroll
        for (u32 j = 0; j < TERMS; j++) {
            if (first + j >= count) break;
            sum.add(v[j], term_weight(t.rows, first + j));
        }
        first += TERMS;
        if (first >= count) break;
    }
    uint4 out[SLOT_UNITS];
    sum.round(out);
    store_piece(p, p.out.x + token * p.out.stride, offset, out);
}

// Carried weights of a token. One warp.
EP_SELDOM void sum_carried_slots(const SlottedCombineParams &p, u32 token) {
    SlotRoute r = ask_for_route<Kind::BY_RANK>(p, token);
    follow_route<Kind::BY_RANK>(p, r);
    sum_carried(p, token, r.id, leads_rank(r), r.rank, slot_carried(p, p.comm.rank, token * p.num_topk + lane_id()));
}

// Own partial sums of a worker's jobs after the first.
template <class Row, Kind KIND> EP_SELDOM void stash_more(const SlottedCombineParams &p, u32 jobs, char *shared) {
    for (u32 round = 1; round < p.stash; round++) {
        u32 job = first_job() + round * job_step();
        if (job >= jobs) return;
        SlotJob piece = slot_job(p, job);
        SlotRoute route = ask_for_route<KIND>(p, piece.row);
        follow_route<KIND>(p, route);
        if (route.own >= 0) make_own<Row, KIND>(p, route, piece.offset, stash_of(shared, round));
    }
}

// The sums of a worker's jobs after the first. What finds no place in the stash is made here.
template <class Row, Kind KIND> EP_SELDOM void sum_more(const SlottedCombineParams &p, u32 jobs, char *shared) {
    u32 round = 1, job = first_job() + job_step();
    SlotRoute route = ask_for_route<KIND>(p, slot_job(p, job).row);
    while (job < jobs) {
        SlotJob piece = slot_job(p, job);
        follow_route<KIND>(p, route);
        SlotTerms terms = slot_terms<KIND>(p, piece.row, route);
        uint4 *stash = stash_of(shared, round < p.stash ? round : 0);
        if (round >= p.stash && route.own >= 0) make_own<Row, KIND>(p, route, piece.offset, stash);
        job += job_step();
        round++;
        if (job < jobs) route = ask_for_route<KIND>(p, slot_job(p, job).row);
        sum_slots<Row>(p, piece.row, piece.offset, terms, stash);
        if (piece.offset == 0 && p.out.carried) sum_carried_slots(p, piece.row);
    }
}

// The tokens of one worker. What its first job needs is on its way before anything else is known, and all of it is here
// before the peers' rows are.
template <class Row, Kind KIND> struct SlotSums {
    SlotJob piece;           // the first
    SlotRoute route;
    SlotTerms terms;
    u32 jobs;

    __device__ __forceinline__ void ask(const SlottedCombineParams &p) {
        piece = slot_job(p, first_job());
        route.own = -1;
        if (piece.row < p.max_tokens) route = ask_for_route<KIND>(p, piece.row);
    }
    __device__ __forceinline__ void follow(const SlottedCombineParams &p, u32 tokens) {
        jobs = tokens * p.pieces;
        if (first_job() < jobs) follow_route<KIND>(p, route);
    }
    __device__ __forceinline__ void prepare(const SlottedCombineParams &p, char *shared) {
        if (first_job() >= jobs) return;
        if (route.own >= 0) make_own<Row, KIND>(p, route, piece.offset, stash_of(shared, 0));
        terms = slot_terms<KIND>(p, piece.row, route);
        if (KIND != Kind::EXACT && p.stash > 1) stash_more<Row, KIND>(p, jobs, shared);
    }
    __device__ __forceinline__ void sum(const SlottedCombineParams &p, char *shared) const {
        if (first_job() >= jobs) return;
        sum_slots<Row>(p, piece.row, piece.offset, terms, stash_of(shared, 0));
        if (piece.offset == 0 && p.out.carried) sum_carried_slots(p, piece.row);
        if (first_job() + job_step() < jobs) sum_more<Row, KIND>(p, jobs, shared);
    }
};

} // namespace ep
