// The bodies of the slotted combine kernels.
#pragma once
#include "slot_sum.cuh"

namespace ep {

enum : u32 { TICKET_LEFT = 2 };

// The own rows of a whole combine need no slots where the flag allows it.
__device__ __forceinline__ u32 pushed_sources(const SlottedCombineParams &p) { return p.comm.ranks - (p.flags & OWN_ROWS ? 1 : 0); }

// The end of a block's work on the buffer. In the last block, thread 0 writes back what has changed, and none but ACK mode
// waits for it: nobody but the next operation of this stream reads it.
__device__ __forceinline__ void leave(const SlottedCombineParams &p, CombineShared &s, Outcome o) {
    OperationState &op = s.op;
    if (o.received && p.comm.sync == SYNC_ACK) {
        if (!pass_ticket(p.comm, op, TICKET_SUMMED)) return;
        o.acknowledged = acknowledge(p.comm, op);
        if (threadIdx.x == 0) finish(p.comm, op, o);
    } else if (pass_quietly(p.comm, TICKET_LEFT)) {
        note_outcome(p.comm, op, o);
        if (!o.received) {
            HandleRecord *record = at<HandleRecord>(p.record);
            record->combine_epoch = op.epoch;
            record->combine_turn = op.words.sent[DATA];
            record->combine_refused = 0;
        }
        free_buffer(p.comm);
    }
}

// Rows to the slots of the peers, and the word that they have come. False: the operation has ended.
template <class Row, Kind KIND> __device__ __forceinline__ bool push_all(const SlottedCombineParams &p, CombineShared &s, u32 sources, Guard &guard) {
    OperationState &op = s.op;
    // What this warp pushes first is on its way before the buffer's state is known.
    Started started = start(p.comm);
    u64 tokens = at<const HandleRecord>(p.record)->num_tokens;
    Push<Row, KIND> push;
    push.fetch(p, slot_warp(), sources);
    if (threadIdx.x == 0) s.tokens = tokens;
    begin(p.comm, op, started);
    if (!guard_combine(p, s, true, guard)) return false;
    if (blockIdx.x == 0) name_operation(p.comm, op);
    push_rows(p, push, sources);
    __syncthreads();
    // By the warp that has the fewest pieces.
    if (warp_id() == blockDim.x / WARP - 1) announce(p.comm, blockIdx.x, gridDim.x);
    return true;
}

template <class Row, Kind KIND> __device__ __forceinline__ void slotted_whole(const SlottedCombineParams &p, CombineShared &s, char *shared) {
    OperationState &op = s.op;
    Guard guard;
    if (!push_all<Row, KIND>(p, s, pushed_sources(p), guard)) return end_combine(p, s);
    SlotSums<Row, KIND> sums;
    sums.prepare(p, (u32)s.tokens, shared);
    if (!wait_arrivals(p.comm, op, op.words.sent[DATA])) return;
    sums.sum(p, shared);
    Outcome o = combine_outcome(p, op, guard);
    o.received = true;
    o.ends = op.epoch + 1;
    leave(p, s, o);
}

template <class Row, Kind KIND> __device__ __forceinline__ void slotted_send(const SlottedCombineParams &p, CombineShared &s) {
    Guard guard;
    if (!push_all<Row, KIND>(p, s, p.comm.ranks, guard)) return end_combine(p, s);
    leave(p, s, combine_outcome(p, s.op, guard));
}

template <class Row, Kind KIND> __device__ __forceinline__ void slotted_receive(const SlottedCombineParams &p, CombineShared &s, char *shared) {
    u64 turn, next;
    if (!resume_combine(p, s, turn, next)) return end_combine(p, s);
    SlotSums<Row, KIND> sums;
    sums.prepare(p, (u32)s.tokens, shared);
    if (!wait_arrivals(p.comm, s.op, turn)) return;
    sums.sum(p, shared);
    Outcome o = no_outcome();
    o.received = true;
    o.kind = COMBINE_WINDOW;
    o.window = p.window;
    o.ends = next;
    leave(p, s, o);
}

} // namespace ep
