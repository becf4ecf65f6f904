// Totals of a buffer since create, kept by the kernels so that replays count too. One launch at a time runs, so a counter
// has one writer, but for waits.
#pragma once
#include "../layout/address.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/special.cuh"

namespace ep {

__device__ __forceinline__ Counters *counters(const CommParams &c) { return at<Counters>(c.counters); }
__device__ __forceinline__ PeerCounters *peer_counters(const CommParams &c, u32 peer) { return at<PeerCounters>(c.counters + sizeof(Counters)) + peer; }
__device__ __forceinline__ u64 *expert_counter(const CommParams &c, u32 local) { return at<u64>(c.counters + sizeof(Counters) + c.ranks * sizeof(PeerCounters)) + local; }

// An operation is about to be sent: its waits add up from 0. One warp of block 0, before its first wait.
__device__ __forceinline__ void begin_counting(const CommParams &c, u64 epoch) {
    for (u32 peer = lane_id(); peer < c.ranks; peer += WARP) peer_counters(c, peer)->wait_last = 0;
    if (lane_id() != 0) return;
    counters(c)->wait_last = 0;
    counters(c)->epoch = epoch;
}

// One thread has waited for a peer.
__device__ __forceinline__ void count_wait(const CommParams &c, u32 peer, u64 ns) {
    ptx::add_relaxed_gpu(&peer_counters(c, peer)->wait_last, ns);
    ptx::add_relaxed_gpu(&peer_counters(c, peer)->wait_total, ns);
}

// Some threads have waited for all peers, since `begun`. One of them.
__device__ __forceinline__ void count_waits(const CommParams &c, u64 begun) {
    u64 ns = ptx::nanoseconds() - begun;
    ptx::add_relaxed_gpu(&counters(c)->wait_last, ns);
    ptx::add_relaxed_gpu(&counters(c)->wait_total, ns);
}

__device__ __forceinline__ void count_sent(const CommParams &c, u32 peer, u64 rows, u64 row_bytes) {
    ptx::add_relaxed_gpu(&peer_counters(c, peer)->rows_sent, rows);
    ptx::add_relaxed_gpu(&peer_counters(c, peer)->bytes_sent, rows * row_bytes);
}

__device__ __forceinline__ void count_received(const CommParams &c, u32 peer, u64 rows, u64 row_bytes) {
    ptx::add_relaxed_gpu(&peer_counters(c, peer)->rows_received, rows);
    ptx::add_relaxed_gpu(&peer_counters(c, peer)->bytes_received, rows * row_bytes);
}

} // namespace ep
