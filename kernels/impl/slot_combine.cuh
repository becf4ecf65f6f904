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

// The last thread, once it needs the buffer's words no more: that of block 0 stores the outcome ahead of the end, unless
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

// The last warp of block 0 says what is sent.
__device__ __forceinline__ void name_combine(const SlottedCombineParams &p, const CombineShared &s) {
    if (blockIdx.x != 0) return;
    if (s.guard == WRITE_AT_ONCE) begin_counting(p.comm, s.op.epoch);
    name_operation(p.comm, s.op);
}

__device__ __forceinline__ CombineGuard ask_for_combine_guard(const SlottedCombineParams &p, const HandleRecord *record) {
    return {ask_for_guard(p.comm, COMBINE_WINDOW, p.window), ptx::load_relaxed_gpu(&buffer_state(p.comm)->words.claimed), record->claim, record->dispatch_refused != 0};
}

// A send has no sums to make ready.
struct NoSums {
    __device__ __forceinline__ void ask(const SlottedCombineParams &) {}
    __device__ __forceinline__ void follow(const SlottedCombineParams &, u32) {}
};

// Rows to the slots of the peers, and the word that they have come. What the workers push first and what `sums` needs first is
// on its way before the buffer's state is known. The last thread finds the guard from what it has asked for itself; its warp tells
// the peers. False: the operation has ended.
template <class Row, Kind KIND, class Sums> __device__ __forceinline__ bool push_all(const SlottedCombineParams &p, CombineShared &s, u32 sources, Sums &sums) {
    const HandleRecord *record = at<HandleRecord>(p.record);
    Started started = start(p.comm, record);
    u64 tokens = record->num_tokens;
    u32 count = ask_for_count(p);
    Push<Row, KIND> push;
    if (is_worker()) {
        sums.ask(p);
        push.fetch(p, first_job(), sources);
        sums.follow(p, (u32)tokens);
        push.make(p);
    } else if (is_last_thread()) {
        s.guard = find_guard(p, ask_for_combine_guard(p, record));
    }
    AskedAhead peers(p.comm, is_worker() ? p.comm.ranks : lane_id());
    begin(p.comm, s.op, started);
    if (s.op.status != SUCCESS) return false;
    check_in(p.comm);
    if (s.guard != WRITE_AT_ONCE && !enter_window(p.comm, s.op, s.guard, COMBINE_WINDOW, p.window)) return false;
    if (is_worker()) {
        push.send(p);
        u32 jobs = most_rows(p, count) * sources * p.pieces, next = first_job() + job_step();
        if (next < jobs) push_more<Row, KIND>(p, next, jobs, sources);
    } else {
        name_combine(p, s);
    }
    __syncthreads();
    if (is_worker()) return true;
    announce(p.comm, blockIdx.x, gridDim.x, peers);
    if (is_counting_warp()) count_slots_sent<KIND>(p);
    return true;
}

// The sums of all tokens, and the end of the operation. The workers are to have asked for what comes first. make_outcome: by who
// needs it, so that nobody else has it at hand all the time.
template <class Row, Kind KIND, class MakeOutcome>
__device__ __forceinline__ void sum_all(const SlottedCombineParams &p, CombineShared &s, SlotSums<Row, KIND> &sums, u64 turn, MakeOutcome make_outcome, char *shared) {
    OperationState &op = s.op;
    AskedAhead peers(p.comm, first_awaited());
    if (is_worker()) {
        sums.prepare(p, shared);
    } else {
        settle(p, op, make_outcome());
        if (is_counting_warp()) count_slots_received<KIND>(p);
    }
    if (wait_arrivals(p.comm, op, turn, blockIdx.x == 0, peers) && is_worker()) sums.sum(p, shared);
    Outcome o = make_outcome();
    leave(p.comm, op, turn, o, acknowledges(p, op, o));
}

template <class Row, Kind KIND> __device__ __forceinline__ void slotted_whole(const SlottedCombineParams &p, CombineShared &s, char *shared) {
    SlotSums<Row, KIND> sums;
    if (!push_all<Row, KIND>(p, s, pushed_sources(p), sums)) return end_combine(p, s);
    auto make_outcome = [&] {
        Outcome o = combine_outcome(p, s.op, s.guard);
        o.received = true;
        o.ends = s.op.epoch + 1;
        return o;
    };
    sum_all(p, s, sums, s.op.words.sent[DATA], make_outcome, shared);
}

template <class Row, Kind KIND> __device__ __forceinline__ void slotted_send(const SlottedCombineParams &p, CombineShared &s) {
    NoSums none;
    if (!push_all<Row, KIND>(p, s, p.comm.ranks, none)) return end_combine(p, s);
    Outcome o = combine_outcome(p, s.op, s.guard);
    settle(p, s.op, o);
    leave(p.comm, s.op, s.op.words.sent[DATA], o, acknowledges(p, s.op, o));
}

template <class Row, Kind KIND> __device__ __forceinline__ void slotted_receive(const SlottedCombineParams &p, CombineShared &s, char *shared) {
    u64 turn, next;
    if (!resume_combine(p, s, turn, next)) return end_combine(p, s);
    check_in(p.comm);
    auto make_outcome = [&] {
        Outcome o = no_outcome();
        o.received = true;
        o.kind = COMBINE_WINDOW;
        o.window = p.window;
        o.ends = next;
        return o;
    };
    SlotSums<Row, KIND> sums;
    if (is_worker()) {
        sums.ask(p);
        sums.follow(p, (u32)s.tokens);
    }
    sum_all(p, s, sums, turn, make_outcome, shared);
}

} // namespace ep
