// How the books of a slotted operation are closed without a ticket that anybody waits for. The block that stores its outcome
// must know that all others have read the buffer's words: they check in when they have, and none waits for an answer.
#pragma once
#include "signal.cuh"
#include "wait.cuh"

namespace ep {

constexpr u32 TICKET_CHECKED_IN = 5;
constexpr u32 TICKET_LEFT = 6;          // of slotted operations, which packed ones have no use for

// All threads, behind the barrier of `begin`: the words have been read. That is all the others need to know.
__device__ __forceinline__ void check_in(const CommParams &c) {
    if (blockIdx.x != 0 && threadIdx.x == 0) ptx::add_relaxed_gpu(&buffer_state(c)->tickets[TICKET_CHECKED_IN], 1);
}

EP_SELDOM bool await_others(const CommParams &c, OperationState &op, u32 *ticket) {
    u64 since = ptx::nanoseconds();
    while (ptx::load_relaxed_gpu(ticket) != gridDim.x - 1) {
        if (ptx::nanoseconds() - since <= timeout_of(c, op) && !ptx::load_relaxed_gpu(&buffer_state(c)->words.poisoned)) continue;
        note_failure(c, op, {TIMEOUT, 0, since}, c.rank, DATA, op.epoch);
        return false;
    }
    return true;
}

// A refused operation: all have checked in, and none waits for it.
__device__ __forceinline__ void forget_check_in(const CommParams &c) { ptx::store_relaxed_gpu(&buffer_state(c)->tickets[TICKET_CHECKED_IN], 0); }

// One thread of block 0, until the others have checked in. Bounded like every wait; a failure is noted for `leave`.
__device__ __forceinline__ bool await_check_in(const CommParams &c, OperationState &op) {
    if (gridDim.x == 1) return true;
    u32 *ticket = &buffer_state(c)->tickets[TICKET_CHECKED_IN];
    if (ptx::load_relaxed_gpu(ticket) != gridDim.x - 1 && !await_others(c, op, ticket)) return false;
    forget_check_in(c);
    return true;
}

// All threads of every block, when all is done or has failed. acknowledges: the peers are to be told that this rank has read
// a window; then every block has read it first, and the outcome has not been stored yet.
__device__ __forceinline__ void leave(const CommParams &c, OperationState &op, u64 turn, Outcome o, bool acknowledges) {
    __syncthreads();
    if (op.failed != SUCCESS) return fail(c, op, turn); // of a wait for the peers, or for the blocks to check in
    if (acknowledges) {
        if (!pass_ticket(c, op, TICKET_LEFT)) return;
        o.acknowledged = acknowledge(c, op);
        if (threadIdx.x == 0) finish(c, op, o);
        return;
    }
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    if (!o.received) __threadfence(); // nothing has been waited for since the outcome was stored
    end_settled(c, op);
}

} // namespace ep
