// The bodies of the slotted combine kernels.
#pragma once
#include "../comm/check_in.cuh"
#include "slot_sum.cuh"
#include "slot_traffic.cuh"

namespace ep {

// The own rows of a whole combine need no slots where the flag allows it.
__device__ __forceinline__ u32 pushed_sources(const SlottedCombineParams &p) { return p.comm.ranks - (p.flags & OWN_ROWS ? 1 : 0); }

__device__ __forceinline__ bool is_last_thread() { return threadIdx.x == blockDim.x - 1; }

// Whether reads end with this operation that the peers are to be told of: of its window, or of rows that were dispatched.
__device__ __forceinline__ bool acknowledges(const SlottedCombineParams &p, const OperationState &op, const Outcome &o) {
    return p.comm.sync == SYNC_ACK && (o.received || op.held.open);
}

// Every block's last thread, once it needs the buffer's words no more: block 0 stores the outcome ahead of the end, unless
// the peers are to be told of it then. (A failure poisons the buffer, whose words then count no more.)
__device__ __forceinline__ void settle(const SlottedCombineParams &p, OperationState &op, const Outcome &o) {
    if (blockIdx.x != 0 || !is_last_thread() || !await_check_in(p.comm, op)) return;
    if (o.received)
        at<HandleRecord>(p.record)->combining = 0;
    else
        keep_combine(p, op);
    if (o.sent) ptx::add_relaxed_gpu(&counters(p.comm)->combines, 1);
    if (!acknowledges(p, op, o)) store_outcome(p.comm, op, o);
}

// Rows to the slots of the peers, and the word that they have come. False: the operation has ended.
template <class Row, Kind KIND> __device__ __forceinline__ bool push_all(const SlottedCombineParams &p, CombineShared &s, u32 sources, Guard &guard) {
    // What this warp pushes first is on its way before the buffer's state is known.
    const HandleRecord *record = at<const HandleRecord>(p.record);
    Started started = start(p.comm, record);
    u64 tokens = record->num_tokens, refused = record->dispatch_refused;
    Push<Row, KIND> push;
    push.fetch(p, slot_warp(), sources);
    if (threadIdx.x == 0) {
        s.tokens = tokens;
        s.no_dispatch = refused;
    }
    begin(p.comm, s.op, started);
    if (s.op.status == SUCCESS) check_in(p.comm);
    if (!guard_combine(p, s, guard)) return false;
    if (blockIdx.x == 0 && warp_id() == 0) name_operation(p.comm, s.op);
    push_rows(p, push, sources);
    __syncthreads();
    // By the warp that has the fewest pieces.
    if (is_last_warp()) announce(p.comm, blockIdx.x, gridDim.x);
    if (is_counting_warp()) count_slots_sent<KIND>(p);
    return true;
}

template <class Row, Kind KIND> __device__ __forceinline__ void slotted_whole(const SlottedCombineParams &p, CombineShared &s, char *shared) {
    OperationState &op = s.op;
    Guard guard;
    if (!push_all<Row, KIND>(p, s, pushed_sources(p), guard)) return end_combine(p, s);
    Outcome o = combine_outcome(p, op, guard);
    o.received = true;
    o.ends = op.epoch + 1;
    u64 turn = op.words.sent[DATA];
    SlotSums<Row, KIND> sums;
    sums.prepare(p, (u32)s.tokens, shared);
    settle(p, op, o);
    if (is_counting_warp()) count_slots_received<KIND>(p);
    if (wait_arrivals(p.comm, op, turn, blockIdx.x == 0)) sums.sum(p, shared);
    leave(p.comm, op, turn, o, acknowledges(p, op, o));
}

template <class Row, Kind KIND> __device__ __forceinline__ void slotted_send(const SlottedCombineParams &p, CombineShared &s) {
    Guard guard;
    if (!push_all<Row, KIND>(p, s, p.comm.ranks, guard)) return end_combine(p, s);
    Outcome o = combine_outcome(p, s.op, guard);
    settle(p, s.op, o);
    leave(p.comm, s.op, s.op.words.sent[DATA], o, acknowledges(p, s.op, o));
}

template <class Row, Kind KIND> __device__ __forceinline__ void slotted_receive(const SlottedCombineParams &p, CombineShared &s, char *shared) {
    u64 turn, next;
    if (!resume_combine(p, s, turn, next)) return end_combine(p, s);
    check_in(p.comm);
    Outcome o = no_outcome();
    o.received = true;
    o.kind = COMBINE_WINDOW;
    o.window = p.window;
    o.ends = next;
    SlotSums<Row, KIND> sums;
    sums.prepare(p, (u32)s.tokens, shared);
    settle(p, s.op, o);
    if (is_counting_warp()) count_slots_received<KIND>(p);
    if (wait_arrivals(p.comm, s.op, turn, blockIdx.x == 0)) sums.sum(p, shared);
    leave(p.comm, s.op, turn, o, acknowledges(p, s.op, o));
}

} // namespace ep
