// How the rows of a slotted operation are announced: every block that sends adds its share to one counter at each peer,
// with one release and no ticket among the blocks. All shares of an operation make ARRIVALS, however many blocks a rank
// uses, so the counter stands at ARRIVALS * (n + 1) exactly when operation n of that source (by its turn in the DATA
// phase) has come. What the operation is, its DATA word says, stored ahead of the share of block 0.
#pragma once
#include "signal.cuh"
#include "wait.cuh"

namespace ep {

constexpr u64 ARRIVALS = 1 << 16; // more than the blocks of any launch

__device__ __forceinline__ u64 *arrival_word(const CommParams &c, u32 holder, u32 source) {
    return at<u64>(peer_base(c, holder) + c.arrivals + (u64)source * WORD_BYTES);
}

// Behind the guard, by one warp of block 0: what is about to be sent.
__device__ __forceinline__ void name_operation(const CommParams &c, const OperationState &op) {
    u64 value = signal_value(c, op.epoch);
    for (u32 peer = lane_id(); peer < c.ranks; peer += WARP)
        if (is_alive(c, peer)) ptx::store_relaxed_sys(signal_word(c, peer, DATA, c.rank, op.words.sent[DATA]), value);
}

// Which peers are there, asked ahead by those who will tell them or wait for them: `alive(peer)`, for a thread's own first peer
// without a look at memory.
struct AskedAhead {
    const CommParams &c;
    u32 first;
    bool is_there;

    __device__ __forceinline__ AskedAhead(const CommParams &c, u32 first) : c(c), first(first), is_there(first < c.ranks && is_alive(c, first)) {}
    __device__ __forceinline__ bool operator()(u32 peer) const { return peer == first ? is_there : is_alive(c, peer); }
};

// One warp, behind a block barrier that gathers the stores it covers. `block` of the `blocks` that send.
template <class Alive> __device__ __forceinline__ void announce(const CommParams &c, u32 block, u32 blocks, Alive alive) {
    u64 share = block == 0 ? ARRIVALS - (blocks - 1) : 1;
    if (block == 0 && lane_id() == 0) stamp(c, SENT);
    for (u32 peer = lane_id(); peer < c.ranks; peer += WARP)
        if (alive(peer)) ptx::add_release_sys(arrival_word(c, peer, c.rank), share);
}

// Half of a block waits for the arrival counters, the other half for the DATA words.
__device__ __forceinline__ u32 half_block() { return blockDim.x / WARP / 2 * WARP; }
__device__ __forceinline__ u32 first_awaited() { return threadIdx.x < half_block() ? threadIdx.x : threadIdx.x - half_block(); }

// All threads of a block wait until operation `turn` has come from every peer; its epoch is op.epoch. Afterwards each of them
// sees the rows. False: why is noted in op, and `leave` ends the operation. counts: in one block, for the statistics.
template <class Alive> __device__ __forceinline__ bool wait_arrivals(const CommParams &c, OperationState &op, u64 turn, bool counts, Alive alive) {
    u64 begun = ptx::nanoseconds();
    u32 half = half_block();
    bool first_half = threadIdx.x < half, well = true;
    for (u32 peer = first_awaited(); peer < c.ranks; peer += first_half ? half : blockDim.x - half) {
        if (!alive(peer)) continue;
        well &= first_half ? wait_counter(c, op, arrival_word(c, c.rank, peer), (turn + 1) * ARRIVALS, peer, DATA, 0, counts)
                           : wait_signal(c, op, DATA, turn, op.epoch, peer, false);
    }
    if (__syncthreads_or(!well)) return false;
    ptx::let_next_kernel_come(); // this one waits for no peer any more, so that the other cannot take a place that a peer needs
    if (counts && threadIdx.x == half) {
        count_waits(c, begun);
        stamp(c, RECEIVED);
    }
    return true;
}

} // namespace ep
