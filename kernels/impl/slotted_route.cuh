// Slotted dispatch: where rows go. Every block looks at the ids of all tokens and keeps, for each rank and each expert, a
// mask of the tokens that go there: a row's position is then the number of bits below it. No block waits for another, and
// what an id does twice to a mask is done once.
#pragma once
#include "../layout/slotted.cuh"
#include "dispatch.cuh"

namespace ep {

// In shared memory. Columns: the ranks, then the experts.
struct Routing {
    u64 *bases;              // [ranks]: their symmetric memory
    u32 *homes;              // [experts], as in the table
    u32 *alive;              // [ranks]
    u32 *before;             // [columns] tokens of earlier chunks
    u32 *masks;              // [chunk_words][columns] of the chunk
    u32 columns, words;
    u32 stamp;               // of what is told to the host
};

__device__ __forceinline__ Routing make_routing(const SlottedDispatchParams &p, char *shared) {
    Routing r = {};
    r.columns = p.comm.ranks + p.num_experts;
    r.words = p.chunk_words;
    r.bases = reinterpret_cast<u64 *>(shared);
    r.homes = reinterpret_cast<u32 *>(r.bases + p.comm.ranks);
    r.alive = r.homes + p.num_experts;
    r.before = r.alive + p.comm.ranks;
    r.masks = r.before + r.columns;
    return r;
}

// All threads, ahead of a block barrier: ranks `first`, `first` + blockDim.x and so on.
__device__ __forceinline__ void init_ranks(const SlottedDispatchParams &p, const Routing &r, u32 first) {
    for (u32 i = first; i < p.comm.ranks; i += blockDim.x) {
        r.bases[i] = peer_base(p.comm, i);
        r.alive[i] = is_alive(p.comm, i);
    }
}

// The same with all that is counted in. What has to be read is on its way before anything waits for it.
__device__ __forceinline__ void init_routing(const SlottedDispatchParams &p, const Routing &r) {
    u32 me = threadIdx.x, home = 0;
    bool alive = me < p.comm.ranks && is_alive(p.comm, me);
    if (me < p.num_experts) home = ptx::load_ahead(at<const u32>(p.kept.expert_home) + me);
    for (u32 i = me; i < r.columns * (1 + r.words); i += blockDim.x) r.before[i] = 0;
    if (me < p.num_experts) r.homes[me] = home;
    for (u32 i = me + blockDim.x; i < p.num_experts; i += blockDim.x) r.homes[i] = ptx::load_ahead(at<const u32>(p.kept.expert_home) + i);
    if (me < p.comm.ranks) {
        r.bases[me] = peer_base(p.comm, me);
        r.alive[me] = alive;
    }
    init_ranks(p, r, me + blockDim.x);
}

// Whose routing is sent: the caller's, or the handle's once more.
struct GivenRouting {
    u64 ids, weights;        // weights 0: all are 1
    u32 id_bytes;

    __device__ __forceinline__ i64 id(u64 index) const {
        return id_bytes == 8 ? (i64)ptx::load_ahead(at<const u64>(ids) + index) : (i64)(i32)ptx::load_ahead(at<const u32>(ids) + index);
    }
    __device__ __forceinline__ float weight(u64 index) const { return weights ? __uint_as_float(ptx::load_ahead(at<const u32>(weights) + index)) : 1.0f; }
};

__device__ __forceinline__ GivenRouting given_routing(const SlottedDispatchParams &p) {
    bool cached = p.flags & CACHED;
    return {cached ? p.kept.ids : p.given.topk_idx, cached && !p.given.topk_weights ? p.kept.weights : p.given.topk_weights, cached ? 4 : p.given.id_bytes};
}

// The expert that a given id names; FULL for none, BAD_EXPERT for what names none.
constexpr u32 BAD_EXPERT = FULL - 1;
__device__ __forceinline__ u32 expert_of(const SlottedDispatchParams &p, i64 given) {
    return (u64)given < p.num_experts ? (u32)given : given == -1 ? FULL : BAD_EXPERT;
}

// Home of an expert, or rank FULL where nothing goes.
__device__ __forceinline__ Home home_of(const Routing &r, u32 expert) {
    if (expert >= BAD_EXPERT) return {FULL, 0};
    u32 v = r.homes[expert];
    Home home = {v >> 16, v & 0xffff};
    return r.alive[home.rank] ? home : Home{FULL, 0};
}

// The token of a pair, both counted from the same place.
__device__ __forceinline__ u32 token_of_pair(const SlottedDispatchParams &p, u32 pair) { return divide(pair, p.num_topk, p.topk_magic); }

// Ids of pairs as they were given, a thread's first ones on their way at once.
constexpr u32 PAIRS_AHEAD = 2;
struct PairExperts {
    i64 given[PAIRS_AHEAD];
};

// A thread's first pair: side warps have the first ones, so that where there are few, warps with rows have none.
__device__ __forceinline__ u32 first_pair(const SlottedDispatchParams &p) {
    u32 rows = p.row_warps * WARP;
    return threadIdx.x >= rows ? threadIdx.x - rows : threadIdx.x + blockDim.x - rows;
}

// Pairs `first`, `first` + blockDim.x and so on of the tokens [begin, end).
__device__ __forceinline__ PairExperts load_pairs(const SlottedDispatchParams &p, const GivenRouting &given, Tokens tokens, u32 first) {
    PairExperts e;
    u32 pairs = (tokens.end - tokens.begin) * p.num_topk;
#pragma unroll
    for (u32 j = 0; j < PAIRS_AHEAD; j++) {
        u32 pair = first + j * blockDim.x;
        e.given[j] = -1;
        if (pair < pairs) e.given[j] = given.id((u64)tokens.begin * p.num_topk + pair);
    }
    return e;
}

// Sets the bits of a chunk's tokens. `count`: how many tokens there are at all. All threads; the caller adds the barrier.
// Whether this thread has seen an id that is out of range, or that its token has already.
__device__ __forceinline__ bool mark_chunk(const SlottedDispatchParams &p, const Routing &r, const GivenRouting &given, Tokens chunk, u32 count, PairExperts experts) {
    bool bad = false;
    u32 pairs = (chunk.end - chunk.begin) * p.num_topk;
#pragma unroll 1
    for (u32 first = first_pair(p); first < pairs; first += PAIRS_AHEAD * blockDim.x) {
        if (first >= blockDim.x) experts = load_pairs(p, given, chunk, first);
#pragma unroll
        for (u32 j = 0; j < PAIRS_AHEAD; j++) {
            u32 token = token_of_pair(p, first + j * blockDim.x), expert = expert_of(p, experts.given[j]);
            if (expert == FULL || chunk.begin + token >= count) continue;
            bad |= expert == BAD_EXPERT;
            if (expert == BAD_EXPERT) continue;
            u32 *masks = r.masks + token / 32 * r.columns, bit = 1u << token % 32;
            bad |= (atomicOr(masks + p.comm.ranks + expert, bit) & bit) != 0;
            Home home = home_of(r, expert);
            if (home.rank != FULL) atomicOr(masks + home.rank, bit);
        }
    }
    return bad;
}

// How many tokens below the chunk's `token`-th go to a column.
__device__ __forceinline__ u32 tokens_below(const Routing &r, u32 column, u32 token) {
    u32 sum = r.before[column] + __popc(r.masks[token / 32 * r.columns + column] & ((1u << token % 32) - 1));
#pragma unroll 1
    for (u32 w = 0; w < token / 32; w++) sum += __popc(r.masks[w * r.columns + column]);
    return sum;
}

__device__ __forceinline__ bool goes_to(const Routing &r, u32 column, u32 token) { return r.masks[token / 32 * r.columns + column] >> token % 32 & 1; }

__device__ __forceinline__ u32 tokens_of(const Routing &r, u32 column) {
    u32 sum = r.before[column];
#pragma unroll 1
    for (u32 w = 0; w < r.words; w++) sum += __popc(r.masks[w * r.columns + column]);
    return sum;
}

// Between two chunks. All threads.
EP_SELDOM void next_chunk(Routing r) {
    __syncthreads();
    for (u32 column = threadIdx.x; column < r.columns; column += blockDim.x) {
        r.before[column] = tokens_of(r, column);
        for (u32 w = 0; w < r.words; w++) r.masks[w * r.columns + column] = 0;
    }
    __syncthreads();
}

} // namespace ep
