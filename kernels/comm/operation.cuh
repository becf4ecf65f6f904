// The life of one operation on the device: what every block reads at its start, and what the last block writes back.
#pragma once
#include "trace.cuh"

namespace ep {

// What a handle holds, each as 1 + its number, or 0.
struct Held {
    u64 open;                // a dispatch window that is read in place
    u64 area;                // a local area that is
    u64 claim;               // a combine window that is written before the combine
};

// One per block, in shared memory.
struct OperationState {
    BufferWords words;       // as they were when the operation began
    Held held;               // by its handle, then
    u64 epoch;
    u64 waited_since;        // of the wait that failed
    u64 expected;
    u32 status;              // why this block must end, or SUCCESS; changed between barriers of the block only
    u32 failed;              // the status of a wait that failed, taken up by fail(): threads that are ahead of others may set it
    u32 noted;               // nonzero once a thread has taken it on itself to say why
    u32 failed_phase;
    u32 failed_rank;
    u32 adopted;             // 1 + the rank whose verdict ended the wait, or 0
    u32 is_last;
    u32 flag;
};

__device__ __forceinline__ BufferState *buffer_state(const CommParams &c) { return at<BufferState>(c.state); }
__device__ __forceinline__ const BufferControl *buffer_control(const CommParams &c) { return at<const BufferControl>(c.control); }

// What a thread has asked of the buffer's state and the handle: one of the buffer's words; thread WARP, what the handle holds;
// the last thread, which decides, all it needs.
struct Started {
    u64 word, owner, entered, epoch, poisoned;
    Held held;
};

// Asks for the buffer's words and those of the handle, if there is one, and claims the buffer for this launch. Nothing waits
// for the answers before `begin`.
__device__ __forceinline__ Started start(const CommParams &c, const HandleRecord *record) {
    constexpr u32 words = sizeof(BufferWords) / 8; // at most the threads of the smallest block
    static_assert(words <= 2 * WARP, "one word for each thread");
    BufferState *state = buffer_state(c);
    Started s = {};
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp_begin(c);
    if (threadIdx.x < words) s.word = ptx::load_relaxed_gpu(reinterpret_cast<const u64 *>(&state->words) + threadIdx.x);
    if (threadIdx.x == WARP && record) s.held = Held{record->open, record->area, record->claim};
    if (threadIdx.x == blockDim.x - 1) {
        s.owner = ptx::swap_if_equal_gpu(&state->owner, 0, c.launch);
        if (blockIdx.x == 0) s.entered = ptx::swap_if_equal_gpu(&state->entered, 0, 1);
        s.epoch = ptx::load_relaxed_gpu(&state->words.epoch);
        s.poisoned = ptx::load_relaxed_gpu(&state->words.poisoned);
    }
    return s;
}

// All threads call it; afterwards op.status says whether the operation may go on. op.epoch is the next epoch, right for
// operations that send.
__device__ __forceinline__ void begin(const CommParams &c, OperationState &op, const Started &s) {
    if (threadIdx.x < sizeof(BufferWords) / 8) reinterpret_cast<u64 *>(&op.words)[threadIdx.x] = s.word;
    if (threadIdx.x == WARP) op.held = s.held;
    if (threadIdx.x == blockDim.x - 1) { // one barrier: it has read what it decides by itself
        op.epoch = s.epoch + 1;
        bool is_alone = (s.owner == 0 || s.owner == c.launch) && !s.entered;
        op.status = s.poisoned ? (u32)s.poisoned : is_alone ? (u32)SUCCESS : (u32)CONCURRENT_USE;
        op.is_last = 0;
        op.noted = 0;
        op.failed = SUCCESS;
        op.failed_phase = PHASES;
        op.failed_rank = ~0u;
        op.adopted = 0;
        op.expected = 0;
        op.waited_since = 0;
    }
    __syncthreads();
}

__device__ __forceinline__ void begin(const CommParams &c, OperationState &op, const HandleRecord *record) { begin(c, op, start(c, record)); }

// True in every thread of the block that passes ticket `stage` last. Whatever any block wrote before, this block sees.
__device__ __forceinline__ bool pass_ticket(const CommParams &c, OperationState &op, u32 stage) {
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 *ticket = &buffer_state(c)->tickets[stage];
        op.is_last = ptx::add_acq_rel_gpu(ticket, 1) == gridDim.x - 1;
        if (op.is_last) ptx::store_relaxed_gpu(ticket, 0);
    }
    __syncthreads();
    return op.is_last != 0;
}

// What an operation changes. `window` NO_WINDOW leaves the windows alone.
struct Outcome {
    bool sent, received;
    u32 signals[PHASES];
    u32 kind, window;
    u64 ends;
    HandleRecord *reader;    // the handle, if its rows in place are no longer read when this operation sends, or null
    HandleRecord *claimer;   // the handle, if it gives its claim back, or null
    bool abandoned;          // an operation that was sent will not be received
    bool acknowledged;       // a READ signal for these windows went out
};

// `held`: 1 + a number.
__device__ __forceinline__ u64 bit_of(u64 held) { return 1ull << (held - 1); }

// What an operation changes, stored by one thread when every block has read the words.
__device__ __forceinline__ void store_outcome(const CommParams &c, const OperationState &op, const Outcome &o) {
    BufferWords *w = &buffer_state(c)->words;
    if (o.signals[ENTER] && c.fingerprint >> 12 != OP_BARRIER) counters(c)->entry_barriers++;
    if (o.sent) w->epoch = op.epoch;
    w->in_flight = op.words.in_flight + o.sent - (o.received || o.abandoned);
    if (o.received && op.epoch > op.words.received) w->received = op.epoch;
    for (u32 p = 0; p < PHASES; p++)
        if (o.signals[p]) w->sent[p] = op.words.sent[p] + o.signals[p];
    u64 ack = op.words.reads_ended + 1;
    if (o.acknowledged) w->reads_ended = ack;
    if (o.window != NO_WINDOW) {
        w->ends[o.kind][o.window] = o.ends;
        if (o.acknowledged) w->acks[o.kind][o.window] = ack;
    }
    if (o.reader && op.held.open) {
        u64 open = op.held.open - 1;
        w->ends[DISPATCH_WINDOW][open] = op.words.epoch + 1;
        if (o.acknowledged) w->acks[DISPATCH_WINDOW][open] = ack;
        o.reader->open = 0;
    }
    if (o.reader && op.held.area) {
        w->areas = op.words.areas & ~bit_of(op.held.area);
        o.reader->area = 0;
    }
    if (o.claimer && op.held.claim) {
        w->claimed = op.words.claimed & ~bit_of(op.held.claim);
        o.claimer->claim = 0;
    }
}

// The next launch may have the buffer.
__device__ __forceinline__ void give_up_buffer(const CommParams &c) {
    BufferState *state = buffer_state(c);
    ptx::store_relaxed_gpu(&state->owner, 0ull);
    ptx::store_relaxed_gpu(&state->entered, 0ull);
}

// The end of an operation whose outcome has been stored ahead of a wait of its block: no fence, since a launch that is behind this
// one sees all that it did anyway, and one that runs beside it, which is refused, would have to overtake that wait. One thread.
__device__ __forceinline__ void end_settled(const CommParams &c, const OperationState &op) {
    trace_operation(c, op.epoch);
    give_up_buffer(c);
}

// One thread of the last block.
__device__ __forceinline__ void finish(const CommParams &c, const OperationState &op, const Outcome &o) {
    if (o.sent || o.received) trace_operation(c, op.epoch);
    store_outcome(c, op, o);
    __threadfence(); // a launch beside this one is refused, or sees the outcome
    give_up_buffer(c);
}

__device__ __forceinline__ Outcome no_outcome() {
    Outcome o = {};
    o.window = NO_WINDOW;
    return o;
}

} // namespace ep
