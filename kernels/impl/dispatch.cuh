// Packed dispatch, whole and in halves.
#pragma once
#include "../comm/guard.cuh"
#include "expand.cuh"
#include "pads.cuh"
#include "recount.cuh"
#include "send_rows.cuh"
#include "side_data.cuh"
#include "traffic.cuh"

namespace ep {

enum class Part { WHOLE, SEND, RECEIVE };

constexpr u32 MAX_WARPS = 32;
constexpr u32 ZERO_BYTES = 1024; // of shared memory, source of zero rows

struct DispatchShared {
    OperationState op;
    u64 full[MAX_WARPS * MAX_STAGES];
    u32 left[MAX_WARPS];     // tokens that each row warp has sent (expert layout)
    u32 taken;               // received rows that warps have taken on themselves to expand
    u32 counted;             // nonzero once the counts have been written (first block)
    u32 side_last;
    u64 exchange;            // number of the count exchange whose counts hold
};

// Tickets of a dispatch; of pads, how many are taken (a buffer is packed or slotted, so it shares its place with TICKET_LEFT).
enum : u32 { TICKET_COUNTED = 0, TICKET_SIDE = 1, TICKET_SENT = 2, TICKET_RECEIVED = 3, TICKET_REFUSED = 4, TICKET_PADS = 6, TICKET_BAD_ID = 7 };

template <class Params> __device__ __forceinline__ u32 token_count(const Params &p) {
    if (!p.given.num_tokens_device) return p.given.num_tokens;
    i32 n = __ldg(at<const i32>(p.given.num_tokens_device));
    return n < 0 ? 0 : min((u32)n, p.given.num_tokens);
}

// This block's tokens: whole slices where arrival is announced by slices.
__device__ __forceinline__ Tokens tokens_of_block(const DispatchParams &p, u32 count, bool by_slices) {
    u64 units = by_slices ? (count + (1u << p.slice_shift) - 1) >> p.slice_shift : count;
    u32 begin = (u32)(units * blockIdx.x / gridDim.x), end = (u32)(units * (blockIdx.x + 1) / gridDim.x);
    if (!by_slices) return {begin, end};
    return {min(begin << p.slice_shift, count), min(end << p.slice_shift, count)};
}

__device__ __forceinline__ Ring ring_of(const DispatchParams &p, DispatchShared &s, char *dynamic, u32 warp) {
    return {dynamic + (u64)warp * p.stages * p.piece_bytes, s.full + warp * MAX_STAGES, p.piece_bytes, p.stages, 0};
}

// Dynamic shared memory: the rings, zeros, the experts' homes, the counting area.
__device__ __forceinline__ u32 ring_bytes(const DispatchParams &p) { return (p.row_warps + p.expand_warps) * p.stages * p.piece_bytes; }
__device__ __forceinline__ char *homes_area(const DispatchParams &p, char *dynamic) { return dynamic + ring_bytes(p) + ZERO_BYTES; }
__device__ __forceinline__ char *counting_area(const DispatchParams &p, char *dynamic) { return homes_area(p, dynamic) + div_up(p.num_experts, 4) * 16; }

__device__ __forceinline__ u64 *progress_word(const DispatchParams &p, u32 holder, u32 source, u32 slice) {
    return at<u64>(peer_base(p.comm, holder) + p.progress) + (u64)source * (p.slices + 1) + slice;
}

__device__ __forceinline__ void tell_progress(const DispatchParams &p, const OperationState &op, u32 slice, u32 thread, u32 threads) {
    for (u32 peer = thread; peer < p.comm.ranks; peer += threads)
        if (is_alive(p.comm, peer)) ptx::store_release_sys(progress_word(p, peer, p.comm.rank, slice), op.epoch);
}

// Bad ids of this operation, if any: the first in row order. One thread of the block that publishes the counts.
template <class Params> EP_SELDOM void report_bad_id(const Params &p, const OperationState &op) {
    BufferState *state = buffer_state(p.comm);
    u64 bad = ptx::load_relaxed_gpu(&state->first_bad);
    if (!bad) return;
    state->first_bad = 0;
    u64 index = ~bad;
    report_soft(p.comm, op, INVALID_EXPERT_ID, (i64)(index / p.num_topk), load_id(p, index));
}

__device__ __forceinline__ Homes homes_of(const DispatchParams &p, char *dynamic) { return make_homes(homes_area(p, dynamic)); }
__device__ __forceinline__ Histograms histograms_of(const DispatchParams &p, char *dynamic, bool by_expert) {
    return make_histograms(p, counting_area(p, dynamic), blockDim.x / WARP, by_expert, homes_of(p, dynamic));
}

// What the ranks have counted. The kept matrix is complete only in this block's part; the exchange's is, until this rank's
// data signal.
__device__ __forceinline__ const i32 *counts_of(const DispatchParams &p, const DispatchShared &s) {
    return p.flags & CACHED ? at<const i32>(p.counts) : count_row(p, p.comm.rank, s.exchange, 0);
}

// The histograms of all blocks become this rank's counts, which all ranks exchange. False: the operation has failed.
__device__ inline bool exchange_counts(const DispatchParams &p, DispatchShared &s, const Histograms &h, u32 round) {
    u64 number = s.op.words.sent[COUNTS] + round;
    if (threadIdx.x == 0) s.exchange = number;
    publish_block_counts(p, h, round);
    bool last = pass_ticket(p.comm, s.op, TICKET_COUNTED);
    if (last) {
        publish_counts(p, s.op, number);
        if (threadIdx.x == 0) report_bad_id(p, s.op);
    }
    return wait_peers(p.comm, s.op, COUNTS, number, s.op.epoch, last);
}

// Counts, exchange and positions. meanwhile(): by every warp, when the ids that it counts first are on the way. False: the operation
// has failed.
template <class Meanwhile>
__device__ inline bool route(const DispatchParams &p, DispatchShared &s, const Histograms &h, Tokens tokens, bool by_expert, Meanwhile meanwhile) {
    if ((p.flags & LINK_MAY_OVERFLOW) && blockIdx.x == 0 && threadIdx.x == 0)
        at<HandleRecord>(p.record)->sent_rows = at<HandleRecord>(p.record)->sent_expert_rows = 0;
    count_tokens(p, h, tokens, meanwhile);
    if (!exchange_counts(p, s, h, 0)) return false;
    const i32 *matrix = counts_of(p, s);
    compute_rank_bases(p, matrix, h);
    if (by_expert && (p.flags & LINK_MAY_OVERFLOW) && link_overflows(p, matrix)) {
        recount(p, matrix, h, tokens);
        if (!exchange_counts(p, s, h, 1)) return false;
        compute_expert_bases(p, counts_of(p, s), h, 1);
        __syncthreads();
        place_survivors(p, h, tokens);
    } else {
        if (by_expert) compute_expert_bases(p, matrix, h, 0);
        __syncthreads();
        assign_positions(p, h, tokens, by_expert);
    }
    __syncthreads();
    return true;
}

// Brings on the way what counting will read, while the buffer's state is read.
__device__ __forceinline__ void prefetch_routing(const DispatchParams &p, Tokens tokens) {
    constexpr u32 LINE = 128;
    u64 row = (u64)p.num_topk * p.given.id_bytes, begin = p.given.topk_idx + tokens.begin * row, end = p.given.topk_idx + tokens.end * row;
    for (u64 a = begin / LINE * LINE + threadIdx.x * LINE; a < end; a += blockDim.x * LINE) ptx::prefetch_l1(at<const char>(a));
    if (threadIdx.x * LINE < p.num_experts * 4) ptx::prefetch_l1(at<const char>(p.expert_order) + threadIdx.x * LINE);
    if (threadIdx.x * LINE < p.comm.ranks) ptx::prefetch_l1(at<const char>(p.comm.alive) + threadIdx.x * LINE);
    if (!p.given.topk_weights) return;
    row = (u64)p.num_topk * 4;
    for (u64 a = (p.given.topk_weights + tokens.begin * row) / LINE * LINE + threadIdx.x * LINE; a < p.given.topk_weights + tokens.end * row; a += blockDim.x * LINE)
        ptx::prefetch_l1(at<const char>(a));
}

// Where the handle stands after a receive: its rows are read in place, or not at all.
template <class Params> __device__ __forceinline__ void keep_received(const Params &p, const OperationState &op) {
    HandleRecord *record = at<HandleRecord>(p.record);
    record->dispatching = 0;
    record->open = p.flags & KEEP_OPEN ? 1 + p.window : 0;
    record->area = p.area;
    if (p.area) buffer_state(p.comm)->words.areas = op.words.areas | bit_of(p.area);
}

template <class Params> __device__ __forceinline__ void keep_refused(const Params &p) {
    HandleRecord *record = at<HandleRecord>(p.record);
    record->dispatching = 0;
    record->dispatch_refused = 1;
}

template <class Params> __device__ __forceinline__ void keep_sent(const Params &p, const OperationState &op, u32 count) {
    HandleRecord *record = at<HandleRecord>(p.record);
    record->dispatching = 1 + p.window;
    record->dispatch_epoch = op.epoch;
    record->dispatch_turn = op.words.sent[DATA];
    record->dispatch_refused = 0;
    record->num_tokens = count;
}

// Whether rows in place would overwrite others that are still read.
template <class Params> __device__ __forceinline__ bool is_area_taken(const Params &p, const OperationState &op) {
    return p.area && op.words.areas >> (p.area - 1) & 1;
}

// Refused also while rows of the handle's last dispatch are still read in place. counted: a count exchange comes before the first
// row.
template <class Params> __device__ __forceinline__ Guard guard_dispatch(const Params &p, const OperationState &op, bool counted) {
    bool taken = op.held.open || op.held.area || is_area_taken(p, op);
    return taken ? REFUSED : guard_of(p.comm, guard_words(op, DISPATCH_WINDOW, p.window), counted);
}

// Before a dispatch may write. False: it has failed or is refused.
__device__ __forceinline__ bool enter(const DispatchParams &p, OperationState &op, Guard &guard, bool counted) {
    if (op.status != SUCCESS) return false;
    guard = guard_dispatch(p, op, counted);
    return enter_window(p.comm, op, guard, DISPATCH_WINDOW, p.window);
}

// The end of an operation that did not succeed. All threads of every block.
__device__ inline void end_unsatisfied(const DispatchParams &p, DispatchShared &s, bool by_expert, bool has_outputs) {
    OperationState &op = s.op;
    if (op.status == CONCURRENT_USE) fail(p.comm, op, 0);
    if (has_outputs) write_nothing(p, by_expert, whole_block());
    if (op.status != BUSY) return;
    if (!pass_ticket(p.comm, op, TICKET_REFUSED) || threadIdx.x != 0) return;
    report_soft(p.comm, op, BUSY, -1, -1);
    at<HandleRecord>(p.record)->dispatch_refused = 1;
    finish(p.comm, op, no_outcome());
}

// Side warps of a whole dispatch: send, receive, and fill what is left.
__device__ inline void side_role(const DispatchParams &p, DispatchShared &s, const Homes &homes, char *dynamic, Tokens tokens, const Team &t, bool by_expert, bool cast) {
    OperationState &op = s.op;
    send_side_data(p, homes, tokens, t.warp(), t.warps(), by_expert, !cast);
    t.sync();
    if (t.index == 0) {
        u32 *ticket = &buffer_state(p.comm)->tickets[TICKET_SIDE];
        s.side_last = ptx::add_acq_rel_gpu(ticket, 1) == gridDim.x - 1;
        if (s.side_last) ptx::store_relaxed_gpu(ticket, 0);
    }
    t.sync();
    if (s.side_last) tell_progress(p, op, p.slices, t.index, t.threads);

    const i32 *matrix = counts_of(p, s);
    Received r = sum_received(p, matrix);
    if (by_expert) sum_experts(p, matrix, r, true, false);
    fill_past_end(p, by_expert ? r.expert_rows : r.rows, by_expert ? 1 : p.num_topk, t);

    bool waits = t.block == 0; // as good as any for the statistics
    u64 begun = ptx::nanoseconds();
    for (u32 peer = t.index; peer < p.comm.ranks; peer += t.threads)
        if (is_alive(p.comm, peer)) wait_progress(p.comm, op, progress_word(p, p.comm.rank, peer, p.slices), peer, SIDE, 500, waits);
    t.sync();
    if (waits && t.index == 0) count_waits(p.comm, begun);
    if (__any_sync(FULL, has_failed(op))) return;
    if (by_expert) return expand_side(p, r.rows * t.block / t.blocks, r.rows * (t.block + 1) / t.blocks, t, !cast);
    receive_side_by_rank(p, r.rows, t);
    if (t.block != 0 || !counts_rows(r, by_expert)) return;
    while (!ptx::read_acquire_shared(&s.counted)) ptx::sleep(50); // by a warp that waits for nobody
    count_rows(p, r.handed, reinterpret_cast<i32 *>(counting_area(p, dynamic)), t);
    if (t.warp() == 0) tell_host(p);
}

// Behind the words of Arrivals, where the counting area was.
__device__ __forceinline__ Pads pads_of(const DispatchParams &p, char *dynamic) {
    return make_pads(p, reinterpret_cast<u32 *>(counting_area(p, dynamic)) + 4 * p.comm.ranks);
}

// Of a warp that has nothing else left to do: before, pads hold up rows that peers wait for.
__device__ __forceinline__ void pad_role(const DispatchParams &p, char *dynamic) {
    fill_pads(p, pads_of(p, dynamic), &buffer_state(p.comm)->tickets[TICKET_PADS], dynamic + ring_bytes(p), ZERO_BYTES);
}

// The last block of all has taken its pads too.
__device__ __forceinline__ void forget_pads(const DispatchParams &p) {
    if (threadIdx.x == 0) ptx::store_relaxed_gpu(&buffer_state(p.comm)->tickets[TICKET_PADS], 0);
}

// Writes what callers see of the counts. One warp of the first block.
__device__ inline void count_role(const DispatchParams &p, DispatchShared &s, bool by_expert) {
    const i32 *matrix = counts_of(p, s);
    write_counts(p, s.op, matrix, by_expert);
    if (!counts_rows(sum_received(p, matrix), by_expert)) tell_host(p);
    count_dispatch(p, matrix);
    __syncwarp();
    if (lane_id() == 0) ptx::raise_release_shared(&s.counted, 1);
}

} // namespace ep
