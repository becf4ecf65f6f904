// Sending signals: one release per peer, after a barrier or a ticket has gathered the writes that it covers.
#pragma once
#include "operation.cuh"

namespace ep {

// All threads of the block: signal `number` of `phase` to every rank, this one included.
__device__ __forceinline__ void signal_peers(const CommParams &c, u32 phase, u64 number, u64 value) {
    for (u32 peer = threadIdx.x; peer < c.ranks; peer += blockDim.x)
        if (is_alive(c, peer)) ptx::store_release_sys(signal_word(c, peer, phase, c.rank, number), value);
    if (phase == DATA && threadIdx.x == 0) stamp(c, SENT);
}

// In ACK mode: tells every peer that this rank has ended its reads once more. All threads of one block.
__device__ __forceinline__ bool acknowledge(const CommParams &c, const OperationState &op) {
    if (c.sync != SYNC_ACK) return false;
    for (u32 peer = threadIdx.x; peer < c.ranks; peer += blockDim.x)
        if (is_alive(c, peer)) ptx::store_release_sys(signal_word(c, peer, READ, c.rank, 0), (op.words.reads_ended + 1) << 16 | c.fingerprint);
    return true;
}

} // namespace ep
