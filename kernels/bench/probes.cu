// Small kernels that measuring needs beside the library's: the clock, a pause, and what fills the links. They are in the
// benchmark only; examples/bench/cuda/gpu.rs has the same structs.
#include "../ptx/memory.cuh"
#include "../ptx/special.cuh"

using namespace ep;

constexpr u32 MAX_PLACES = 15;
constexpr u32 LOADS = 4; // of one thread on their way at once

struct StampParams {
    u64 slots, index;
};

struct PauseParams {
    u64 ns;
};

// The same number of 16-byte pieces to or from each of `count` places.
struct LinkParams {
    u64 places[MAX_PLACES];
    u64 pieces;
    u64 seen; // of each thread, what its loads brought: so that they are made
    u32 count, rounds;
};

// slots[index] = the clock
extern "C" __global__ void __launch_bounds__(32, 1) bench_stamp(const __grid_constant__ StampParams p) {
    if (threadIdx.x == 0) at<u64>(p.slots)[p.index] = ptx::nanoseconds();
}

extern "C" __global__ void __launch_bounds__(32, 1) bench_pause(const __grid_constant__ PauseParams p) {
    u64 start = ptx::nanoseconds();
    while (ptx::nanoseconds() - start < p.ns) {}
}

// The place that a block turns to in its n-th step: blocks begin at different ones, so all are busy all the time.
static __device__ __forceinline__ uint4 *turn(const LinkParams &p, u32 n) {
    return at<uint4>(p.places[(blockIdx.x + n) % p.count]);
}

static __device__ __forceinline__ u32 fold(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

// Stores from registers.
extern "C" __global__ void __launch_bounds__(1024, 1) bench_push(const __grid_constant__ LinkParams p) {
    u64 first = u64(blockIdx.x) * blockDim.x + threadIdx.x, step = u64(gridDim.x) * blockDim.x;
    uint4 v = make_uint4(u32(first), threadIdx.x, blockIdx.x, u32(step));
    for (u32 n = 0; n < p.rounds * p.count; n++) {
        uint4 *to = turn(p, n);
        for (u64 i = first; i < p.pieces; i += step) ptx::store_row16(to + i, v);
    }
}

// Loads into registers.
extern "C" __global__ void __launch_bounds__(1024, 1) bench_pull(const __grid_constant__ LinkParams p) {
    u64 first = u64(blockIdx.x) * blockDim.x + threadIdx.x, step = u64(gridDim.x) * blockDim.x;
    u32 seen = 0;
    for (u32 n = 0; n < p.rounds * p.count; n++) {
        const uint4 *from = turn(p, n);
        u64 i = first;
        for (; i + (LOADS - 1) * step < p.pieces; i += LOADS * step) {
            uint4 v[LOADS];
#pragma unroll
            for (u32 k = 0; k < LOADS; k++) v[k] = ptx::load_row16(from + i + k * step);
#pragma unroll
            for (u32 k = 0; k < LOADS; k++) seen |= fold(v[k]);
        }
        for (; i < p.pieces; i += step) seen |= fold(ptx::load_row16(from + i));
    }
    at<u32>(p.seen)[first] = seen;
}
