// The bodies of the slotted dispatch kernels: one pass from the ids to the rows on their way, one from their arrival to
// the outputs.
#pragma once
#include "../comm/arrival.cuh"
#include "../comm/guard.cuh"
#include "slotted_expand.cuh"
#include "slotted_side.cuh"

namespace ep {

struct SlottedShared {
    OperationState op;
};

// The block that finishes must know that all others have read the buffer's words and sent: they check in, no one waits
// for an answer.
__device__ __forceinline__ void check_in(const CommParams &c) {
    ptx::add_release_gpu(&buffer_state(c)->tickets[TICKET_SENT], 1);
}

// One thread of block 0: until the others have checked in. Bounded like every wait, by the deadline.
__device__ inline bool await_check_in(const CommParams &c, OperationState &op) {
    u32 *ticket = &buffer_state(c)->tickets[TICKET_SENT];
    u64 since = ptx::nanoseconds();
    while (ptx::load_acquire_gpu(ticket) != gridDim.x - 1) {
        if (ptx::nanoseconds() - since <= timeout_of(c, op) && !ptx::load_relaxed_gpu(&buffer_state(c)->words.poisoned)) continue;
        op.status = TIMEOUT;
        op.failed_rank = c.rank;
        op.failed_phase = DATA;
        op.expected = op.epoch;
        op.waited_since = since;
        return false;
    }
    ptx::store_relaxed_gpu(ticket, 0);
    return true;
}

// Before anything is stored to a peer. False: the operation has failed or is refused (then op.status is BUSY).
__device__ inline bool enter_slotted(const SlottedDispatchParams &p, OperationState &op, Guard &guard) {
    if (op.status != SUCCESS) return false;
    guard = guard_of(p.comm, op, DISPATCH_WINDOW, p.window, false);
    if (guard == WRITE_AT_ONCE) return true;
    if (guard != REFUSED) return pass_guard(p.comm, op, guard, DISPATCH_WINDOW, p.window);
    __syncthreads();
    if (threadIdx.x == 0) op.status = BUSY;
    __syncthreads();
    return false;
}

// The end of an operation that did not succeed. All threads of every block.
__device__ inline void end_slotted(const SlottedDispatchParams &p, OperationState &op, bool by_expert, bool has_outputs) {
    if (op.status == CONCURRENT_USE) fail(p.comm, op, 0);
    if (has_outputs) write_no_slots(p, by_expert);
    if (op.status != BUSY) return;
    if (!pass_ticket(p.comm, op, TICKET_REFUSED) || threadIdx.x != 0) return;
    report_soft(p.comm, op, BUSY, -1, -1);
    at<HandleRecord>(p.record)->dispatch_refused = 1;
    finish(p.comm, op, no_outcome());
}

// Rows and routing of the block's own tokens, chunk by chunk. All threads; a block barrier is to follow.
template <bool BY_EXPERT, bool CAST>
__device__ __forceinline__ void send_slotted(const SlottedDispatchParams &p, const Routing &r, const GivenRouting &given, const RowDeal &deal, u32 count,
                                             const GroupIds &first_ids, Piece16 piece, SideGroup group) {
    bool is_side = warp_id() == deal.warps;
    u32 unit = warp_id(), chunk_tokens = r.words * 32, side = 0;
    Piece16 next = is_side ? piece : load_piece(p, deal, unit + deal.warps);
    for (u32 begin = 0;; begin += chunk_tokens) {
        Tokens chunk = {begin, min(begin + chunk_tokens, max(count, begin))};
        mark_chunk(p, r, given, chunk, count, begin ? load_groups(p, given, chunk, warp_id()) : first_ids);
        __syncthreads();
        bool last = chunk.end >= count;
        u32 own_end = min(deal.own.below(chunk.end), deal.own.below(count));
        if (last) send_counts(p, r, blockIdx.x, deal.own.step);
        if (!is_side) {
            for (; unit < own_end * deal.pieces; unit += deal.warps) {
                send_piece<CAST>(p, r, piece, deal.token(unit) - begin, deal.offset(unit));
                piece = next;
                next = load_piece(p, deal, unit + 2 * deal.warps);
            }
        } else {
            for (u32 j = side; j < own_end; j += WARP / p.num_topk) {
                if (j) group = load_side_group(p, given, deal.own, j, own_end);
                group.valid = group.valid && group.token < chunk.end;
                send_side_group<BY_EXPERT>(p, r, group, begin);
            }
            if (!CAST && p.scale_bytes)
                for (u32 j = side; j < own_end; j++) send_given_scales(p, r, begin, deal.own.token(j) - begin);
            side = own_end;
        }
        if (last) return;
        next_chunk(r);
    }
}

__device__ __forceinline__ Outcome slotted_outcome(const SlottedDispatchParams &p, Guard guard) {
    Outcome o = no_outcome();
    o.sent = true;
    o.signals[DATA] = 1;
    o.signals[ENTER] = guard == ENTRY_BARRIER;
    o.kind = DISPATCH_WINDOW;
    o.window = p.window;
    o.ends = OPEN;
    return o;
}

__device__ __forceinline__ void keep_slotted_record(const SlottedDispatchParams &p, const OperationState &op, u32 count) {
    HandleRecord *record = at<HandleRecord>(p.record);
    record->dispatch_epoch = op.epoch;
    record->dispatch_turn = op.words.sent[DATA];
    record->dispatch_refused = 0;
    record->num_tokens = count;
}

// The end of a receive: all outputs of this block are written. `ends`: the first epoch sent after these reads.
__device__ __forceinline__ void finish_receive(const SlottedDispatchParams &p, OperationState &op, Outcome o, u64 ends) {
    bool acknowledges = p.comm.sync == SYNC_ACK && !(p.flags & KEEP_OPEN);
    if (acknowledges) {
        // Every block has read the window before this rank says so.
        if (!pass_ticket(p.comm, op, TICKET_RECEIVED)) return;
    } else {
        if (blockIdx.x != 0) return;
        __syncthreads();
    }
    o.received = true;
    if (!(p.flags & KEEP_OPEN)) {
        o.kind = DISPATCH_WINDOW;
        o.window = p.window;
        o.ends = ends;
        o.acknowledged = acknowledge(p.comm, op);
    }
    if (threadIdx.x != 0) return;
    finish(p.comm, op, o);
    at<HandleRecord>(p.record)->told = p.comm.launch; // behind the fence of finish
}

// Blocks that receive: few where there is little to do, so that few poll.
template <bool BY_EXPERT> __device__ __forceinline__ u32 receivers(const SlottedDispatchParams &p) {
    if (BY_EXPERT || p.flags & (COPY_OUT | COPY_SCALES)) return gridDim.x;
    u64 words = p.out_rows * p.comm.ranks * p.num_topk;
    return (u32)min(words / (4 * blockDim.x) + 1, (u64)gridDim.x);
}

// Waits for the peers and writes the outputs. False: it has failed, or this block has no part in it.
template <bool BY_EXPERT> __device__ __forceinline__ bool receive_slotted(const SlottedDispatchParams &p, OperationState &op, u64 turn, u32 *shared) {
    u32 blocks = receivers<BY_EXPERT>(p);
    if (blockIdx.x >= blocks) return false;
    if (!wait_arrivals(p.comm, op, turn)) {
        write_no_slots(p, BY_EXPERT);
        return false;
    }
    if (BY_EXPERT)
        receive_by_expert(p, op, shared);
    else
        receive_by_rank(p, op, blocks, shared);
    return true;
}

template <bool BY_EXPERT, bool CAST, Part PART> __device__ __forceinline__ void slotted_send_body(const SlottedDispatchParams &p, SlottedShared &s, char *shared) {
    constexpr bool WHOLE = PART == Part::WHOLE;
    OperationState &op = s.op;
    Routing r = make_routing(p, shared);
    GivenRouting given = given_routing(p);
    // Everything that does not depend on the buffer's words is on its way when they come. Tokens are dealt by the number
    // the host knows; the device may have fewer.
    u32 senders = min(gridDim.x, max(p.num_tokens, 1));
    RowDeal deal;
    deal.own = {blockIdx.x, senders, blockIdx.x < senders ? p.num_tokens : 0};
    deal.warps = blockDim.x / WARP - 1;
    deal.row_bytes = CAST ? p.hidden * 2 : p.row_bytes;
    deal.pieces = div_up(deal.row_bytes, PIECE_BYTES);
    Tokens first_chunk = {0, min(p.num_tokens, r.words * 32)};
    GroupIds ids = load_groups(p, given, first_chunk, warp_id());
    Piece16 piece = {};
    SideGroup group = {};
    if (warp_id() < deal.warps)
        piece = load_piece(p, deal, warp_id());
    else
        group = load_side_group(p, given, deal.own, 0, deal.own.below(p.num_tokens));
    u32 count = p.flags & CACHED ? (u32)at<const HandleRecord>(p.record)->num_tokens : token_count(p);
    init_routing(p, r);
    begin(p.comm, op);
    Guard guard = WRITE_AT_ONCE;
    if (!enter_slotted(p, op, guard)) return end_slotted(p, op, BY_EXPERT, WHOLE);
    if (blockIdx.x == 0) name_operation(p.comm, op);
    if (blockIdx.x < senders) {
        send_slotted<BY_EXPERT, CAST>(p, r, given, deal, count, ids, piece, group);
        __syncthreads();
        if (warp_id() == 0) announce(p.comm, blockIdx.x, senders);
    }
    bool last_thread = threadIdx.x == blockDim.x - 1;
    if (blockIdx.x != 0) {
        if (last_thread) check_in(p.comm);
    } else if (last_thread && await_check_in(p.comm, op)) {
        report_bad_id(p, op);
    }
    if (WHOLE) {
        if (!receive_slotted<BY_EXPERT>(p, op, op.words.sent[DATA], r.masks)) return;
    }
    if (blockIdx.x == 0) {
        __syncthreads();
        if (op.status != SUCCESS) return fail(p.comm, op, op.words.sent[DATA]);
        if (threadIdx.x == 0) keep_slotted_record(p, op, count);
    }
    if (WHOLE) return finish_receive(p, op, slotted_outcome(p, guard), op.epoch + 1);
    if (blockIdx.x == 0 && threadIdx.x == 0) finish(p.comm, op, slotted_outcome(p, guard));
}

template <bool BY_EXPERT> __device__ __forceinline__ void slotted_receive_body(const SlottedDispatchParams &p, SlottedShared &s, char *shared) {
    OperationState &op = s.op;
    const HandleRecord *record = at<const HandleRecord>(p.record);
    u64 turn = record->dispatch_turn, epoch = record->dispatch_epoch;
    bool refused = record->dispatch_refused != 0;
    begin(p.comm, op);
    u64 next = op.epoch;
    __syncthreads();
    if (threadIdx.x == 0) {
        op.epoch = epoch;
        if (refused && op.status == SUCCESS) op.status = BUSY;
    }
    __syncthreads();
    if (op.status != SUCCESS) return end_slotted(p, op, BY_EXPERT, true);
    bool last_thread = threadIdx.x == blockDim.x - 1;
    if (blockIdx.x != 0 && last_thread) check_in(p.comm);
    if (blockIdx.x == 0 && last_thread) await_check_in(p.comm, op);
    if (!receive_slotted<BY_EXPERT>(p, op, turn, reinterpret_cast<u32 *>(shared))) return;
    if (blockIdx.x == 0) {
        __syncthreads();
        if (op.status != SUCCESS) return fail(p.comm, op, turn);
    }
    finish_receive(p, op, no_outcome(), next);
}

} // namespace ep
