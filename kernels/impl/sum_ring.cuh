// Sums of rows by a warp whose bulk loads run ahead of its additions, through a ring of its own: what it will add next is on
// its way while it adds, and over a link the loads of many pieces make up for the distance.
#pragma once
#include "ring.cuh"
#include "sum.cuh"

namespace ep {

// Bytes of a row that a warp sums at once: seven times 16 per lane, which divides the row sizes of common models.
constexpr u32 PIECE = 3584;

// Pieces [begin, end) of one sum.
struct SumJob {
    Terms terms;
    u32 count;               // of all rows that enter it: those that lead every sum, then the terms
    u32 begin, end;
    u64 token;
};

// The ring of a warp in the block's dynamic shared memory, with its barriers made. All lanes; other warps are not waited for.
__device__ __forceinline__ Ring sum_ring(char *dynamic, u32 stages) {
    u64 *full = reinterpret_cast<u64 *>(dynamic + blockDim.x / WARP * stages * PIECE);
    Ring ring = {dynamic + warp_id() * stages * PIECE, full + warp_id() * stages, PIECE, stages, 0};
    if (lane_id() == 0) init_ring(ring);
    __syncwarp();
    return ring;
}

// What lies behind the rings of all warps.
__device__ __forceinline__ char *behind_sum_rings(char *dynamic, u32 stages) { return dynamic + blockDim.x / WARP * stages * (PIECE + sizeof(u64)); }

// Where a walk through a ring stands.
struct RingPlace {
    char *stage;
    u64 *full;
    u32 parity;

    __device__ __forceinline__ explicit RingPlace(const Ring &ring) : stage(ring.stages), full(ring.full), parity(0) {}
    __device__ __forceinline__ void pass(const Ring &ring) {
        stage += PIECE;
        if (++full < ring.full + ring.count) return;
        stage = ring.stages;
        full = ring.full;
        parity ^= 1;
    }
};

// The side of a warp that loads, piece by piece, each row of it.
// Jobs: more(): whether there is another job; take(): that job. leading: rows that enter every sum before its terms,
// leading_row(token, i): the i-th of them.
template <class Jobs> struct Loads {
    Jobs &jobs;
    const Ring &ring;
    u32 row_bytes;
    SumJob job;              // whose rows are loaded
    u32 piece, term;         // next
    u32 free;                // stages
    bool ahead;              // job is the one behind that which is summed
    RingPlace place;

    __device__ __forceinline__ Loads(Jobs &j, const Ring &r, u32 bytes)
        : jobs(j), ring(r), row_bytes(bytes), job(), piece(0), term(0), free(r.count), ahead(false), place(r) {}

    // The lane that has the term's address starts its load.
    __device__ __forceinline__ void load() {
        if (lane_id() == ((term - jobs.leading) & 31)) {
            u32 offset = piece * PIECE;
            u64 row = term < jobs.leading ? jobs.leading_row(job.token, term) : job.terms.row;
            start_load(place.full, place.stage, {at<const char>(row + offset), min(PIECE, row_bytes - offset)});
        }
        place.pass(ring);
        free--;
    }

    // To the next job, once there is nothing more to load for this one; not past that behind the one which is summed.
    __device__ __forceinline__ void advance() {
        if ((piece != job.end && job.count) || ahead || !jobs.more()) return;
        job = jobs.take();
        piece = job.begin;
        ahead = true;
    }

    // Starts as many loads as there are stages for.
    __device__ __forceinline__ void run() {
        for (;;) {
            advance();
            if (!free || piece == job.end || job.count == 0) return;
            load();
            if (++term < job.count) continue;
            term = 0;
            piece++;
        }
    }
};

// The sums of one piece.
template <class Row, bool WEIGHTED> struct PieceSums {
    static constexpr u32 UNITS = PIECE / UNIT;
    Sum<Row> sum[UNITS];

    __device__ __forceinline__ void start(float with) {
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) sum[u].fill(with);
    }
    __device__ __forceinline__ void add(const char *stage, float weight) {
        const uint4 *v = reinterpret_cast<const uint4 *>(stage) + lane_id();
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) sum[u].template add_term<WEIGHTED>(v[u * WARP], weight);
    }
    // to: where the piece lies; bytes: of it and what follows in the row.
    __device__ __forceinline__ void store(u64 to, u32 bytes) const {
        char *place = at<char>(to + lane_id() * 16);
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) {
            uint4 v = sum[u].rounded(); // outside of the condition: then only the store has one
            if (lane_id() * 16 + u * UNIT < bytes) ptx::store_row16(place + u * UNIT, v);
        }
    }
};

// Sums all jobs of a warp. Jobs: as above; start: what sums begin with, target(token): where a sum goes.
template <class Row, bool WEIGHTED, class Jobs> __device__ __forceinline__ void sum_jobs(Loads<Jobs> &loads) {
    Jobs &jobs = loads.jobs;
    RingPlace place(loads.ring);
    for (;;) {
        loads.advance();
        if (!loads.ahead) return;
        SumJob job = loads.job;
        loads.ahead = false;
        for (u32 piece = job.begin; piece < job.end; piece++) {
            PieceSums<Row, WEIGHTED> sums;
            sums.start(jobs.start);
            for (u32 term = 0; term < job.count; term++) {
                loads.run();
                float weight = WEIGHTED && term >= jobs.leading ? term_weight(job.terms, term - jobs.leading) : 1.0f;
                wait_load(place.full, place.parity);
                sums.add(place.stage, weight);
                __syncwarp();
                place.pass(loads.ring);
                loads.free++;
            }
            sums.store(jobs.target(job.token) + piece * PIECE, loads.row_bytes - piece * PIECE);
        }
    }
}

} // namespace ep
