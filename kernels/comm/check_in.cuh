// How the books of a slotted operation are closed without a ticket that anybody waits for. The block that stores its outcome
// must know that all others have read the buffer's words and sent: they check in, and none waits for an answer.
#pragma once
#include "signal.cuh"
#include "wait.cuh"

namespace ep {

constexpr u32 BAD_ID = 1 << 16; // above the count of blocks, one for each that has seen a bad id
constexpr u32 TICKET_CHECKED_IN = 5;
constexpr u32 TICKET_LEFT = 6;

__device__ __forceinline__ void check_in(const CommParams &c, bool bad) {
    ptx::add_release_gpu(&buffer_state(c)->tickets[TICKET_CHECKED_IN], bad ? 1 + BAD_ID : 1);
}

// One thread of block 0, until the others have checked in; bad: whether any has seen a bad id. Bounded like every wait.
EP_SELDOM bool await_check_in(const CommParams &c, OperationState &op, bool &bad) {
    u32 *ticket = &buffer_state(c)->tickets[TICKET_CHECKED_IN];
    if (gridDim.x == 1) return true;
    u64 since = ptx::nanoseconds();
    for (;;) {
        u32 v = ptx::load_acquire_gpu(ticket);
        if (v >= BAD_ID) bad = true;
        if (v % BAD_ID == gridDim.x - 1) break;
        if (ptx::nanoseconds() - since <= timeout_of(c, op) && !ptx::load_relaxed_gpu(&buffer_state(c)->words.poisoned)) continue;
        note_failure(c, op, {TIMEOUT, 0, since}, c.rank, DATA, op.epoch);
        return false;
    }
    ptx::store_relaxed_gpu(ticket, 0);
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
    if (blockIdx.x == 0 && threadIdx.x == 0) end_settled(c, op);
}

} // namespace ep
