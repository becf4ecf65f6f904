// A warp's ring of shared-memory stages: bulk loads fill them, bulk stores drain them. With three stages one drains,
// one sends and one fills.
#pragma once
#include "../ptx/bulk.cuh"
#include "../ptx/special.cuh"

namespace ep {

constexpr u32 MAX_STAGES = 4;

struct Ring {
    char *stages;            // [count][bytes]
    u64 *full;               // [count] mbarriers
    u32 bytes, count;
    u32 used;                // items that have passed through before; those of a walk are numbered from 0

    __device__ __forceinline__ char *stage(u32 item) const { return stages + ((used + item) % count) * bytes; }
    __device__ __forceinline__ u64 *full_of(u32 item) const { return full + (used + item) % count; }
    __device__ __forceinline__ u32 parity(u32 item) const { return (used + item) / count & 1; }
};

// One lane of the warp, before a block barrier.
__device__ __forceinline__ void init_ring(const Ring &ring) {
    for (u32 i = 0; i < ring.count; i++) ptx::barrier_init(ring.full + i, 1);
    ptx::fence_barrier_init();
}

// Bounded: a load from mapped memory completes unless the device is broken.
__device__ __forceinline__ void wait_load(u64 *full, u32 parity) {
    for (u32 tries = 0; tries < 1u << 24 && !ptx::barrier_try_wait(full, parity); tries++) {
    }
}

__device__ __forceinline__ void wait_full(const Ring &ring, u32 item) { wait_load(ring.full_of(item), ring.parity(item)); }

struct Piece {
    const char *address;
    u32 bytes;
};

__device__ __forceinline__ u32 ring_ahead(const Ring &ring) { return ring.count > 1 ? ring.count - 1 : 1; }

// The calling lane starts a load.
__device__ __forceinline__ void start_load(u64 *full, char *stage, Piece piece) {
    ptx::barrier_expect(full, piece.bytes);
    ptx::bulk_load(stage, piece.address, piece.bytes, full);
}

// Lane 0 starts the load of one item.
__device__ __forceinline__ void load_item(const Ring &ring, u32 item, Piece piece) {
    if (lane_id() == 0) start_load(ring.full_of(item), ring.stage(item), piece);
}

// The first loads, before anything is known about where the items go.
template <class Source> __device__ __forceinline__ void prime_ring(const Ring &ring, u32 items, Source source) {
    for (u32 i = 0; i < ring_ahead(ring) && i < items; i++) load_item(ring, i, source(i));
}

// Shared memory must not be given up while loads are on their way to it.
__device__ __forceinline__ void drain_ring(const Ring &ring, u32 items) {
    for (u32 i = 0; i < ring_ahead(ring) && i < items; i++) wait_full(ring, i);
}

// Moves `items` pieces through a primed ring. source(item) returns where an item is read; before(item) is called by
// all lanes, while the piece is on its way; store(item, stage) by all lanes, when it has come: each lane issues the
// bulk stores that it wants. done(n) is called by all lanes once the stores of the first n items are complete.
template <class Source, class Before, class Store, class Done>
__device__ __forceinline__ void run_ring(const Ring &ring, u32 items, Source source, Before before, Store store, Done done) {
    u32 ahead = ring_ahead(ring);
    for (u32 i = 0; i < items; i++) {
        before(i);
        wait_full(ring, i);
        store(i, ring.stage(i));
        ptx::bulk_commit();
        if (ring.count > 1) {
            ptx::bulk_wait<1>();
            __syncwarp();
            if (i + ahead < items) load_item(ring, i + ahead, source(i + ahead));
            done(i);
        } else {
            ptx::bulk_wait<0>();
            __syncwarp();
            if (i + 1 < items) load_item(ring, i + 1, source(i + 1));
            done(i + 1);
        }
    }
    ptx::bulk_wait<0>();
    __syncwarp();
    done(items);
}

} // namespace ep
