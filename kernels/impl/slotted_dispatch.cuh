// The bodies of the slotted dispatch kernels: one pass from the ids to the rows on their way, one from their arrival to
// the outputs.
#pragma once
#include "../comm/arrival.cuh"
#include "../comm/check_in.cuh"
#include "../comm/guard.cuh"
#include "slotted_expand.cuh"
#include "slotted_side.cuh"

namespace ep {

struct SlottedShared {
    OperationState op;
    Guard guard;
    u32 bad_id;              // some token has one, the same in every block
    u32 no_room;             // it has been sent, so it is received, but handed out it cannot be
};

// The end of an operation that did not succeed. All threads of every block.
EP_SELDOM void end_slotted(const SlottedDispatchParams &p, OperationState &op, bool by_expert, bool has_outputs) {
    if (op.status == CONCURRENT_USE) fail(p.comm, op, 0);
    if (has_outputs) write_no_slots(p, told_stamp(p), by_expert, whole_block());
    if (op.status != BUSY) return;
    if (!pass_ticket(p.comm, op, TICKET_REFUSED) || threadIdx.x != 0) return;
    forget_check_in(p.comm);
    report_soft(p.comm, op, BUSY, -1, -1);
    at<HandleRecord>(p.record)->dispatch_refused = 1;
    finish(p.comm, op, no_outcome());
}

// One warp, while the others count: whether the window may be written at once. Then block 0 says what is about to be sent.
__device__ __forceinline__ void find_guard(const SlottedDispatchParams &p, SlottedShared &s) {
    Guard guard = guard_dispatch(p, s.op, false);
    if (lane_id() == 0) s.guard = guard;
    if (blockIdx.x != 0 || guard != WRITE_AT_ONCE) return;
    begin_counting(p.comm, s.op.epoch);
    name_operation(p.comm, s.op);
}

// All threads, where it may not. False: the dispatch is refused or has failed.
EP_SELDOM bool enter_slowly(const SlottedDispatchParams &p, SlottedShared &s) {
    if (!enter_window(p.comm, s.op, s.guard, DISPATCH_WINDOW, p.window)) return false;
    if (blockIdx.x == 0 && warp_id() == 0) name_operation(p.comm, s.op);
    return true;
}

__device__ __forceinline__ RowDeal deal_rows(const SlottedDispatchParams &p, bool cast) {
    RowDeal d;
    d.own = {blockIdx.x, gridDim.x, p.given.num_tokens};
    d.warps = p.row_warps;
    d.pairs = cast && p.x_dtype == FP32;
    d.row_bytes = cast ? p.hidden * (d.pairs ? 4 : 2) : p.row_bytes;
    d.pieces = div_up(d.row_bytes, PIECE_BYTES);
    return d;
}

__device__ __forceinline__ bool is_row_warp(const RowDeal &deal) { return warp_id() < deal.warps; }

// What one warp has on its way before the buffer's words are here: experts to count, and its first row or routing.
struct FirstLoads {
    PairExperts experts;
    RowPiece at, next_at;
    Piece16 piece, next;
    SideGroup group;
};

// Of a side warp.
__device__ __forceinline__ SideGroup load_first_group(const SlottedDispatchParams &p, const GivenRouting &given, const RowDeal &deal) {
    return load_side_group(p, given, deal.own, (warp_id() - deal.warps) * tokens_of_group(p));
}

__device__ __forceinline__ FirstLoads load_first(const SlottedDispatchParams &p, const Routing &r, const GivenRouting &given, const RowDeal &deal) {
    FirstLoads f = {};
    f.experts = load_pairs(p, given, {0, min(p.given.num_tokens, r.words * 32)}, first_pair(p));
    if (is_row_warp(deal)) {
        f.at = first_piece(deal);
        f.piece = load_piece(p, deal, f.at);
        f.next_at = f.at.next(p, deal);
        f.next = load_piece(p, deal, f.next_at);
    } else {
        f.group = load_first_group(p, given, deal);
    }
    return f;
}

// Sends this row warp's pieces of tokens below the chunk's end, the first of which is ready.
template <bool CAST>
__device__ __forceinline__ void send_pieces(const SlottedDispatchParams &p, const Routing &r, const RowDeal &deal, FirstLoads &f, ReadyPiece<CAST> ready, Tokens chunk) {
    while (f.at.token < chunk.end) {
        send_piece<CAST>(p, r, ready, f.at.token - chunk.begin, f.at.offset());
        f.at = f.next_at;
        f.piece = f.next;
        f.next_at = f.at.next(p, deal);
        f.next = load_piece(p, deal, f.next_at);
        if (f.at.token < chunk.end) ready.make(p, f.piece, f.at.offset());
    }
}

// What lies beside the rows of the chunk's own tokens, from the `from`-th own token on. One of the side warps.
template <bool BY_EXPERT, bool CAST>
__device__ inline void send_beside(const SlottedDispatchParams &p, const Routing &r, const GivenRouting &given, const RowDeal &deal, SideGroup group, u32 from,
                                   Tokens chunk) {
    u32 index = warp_id() - deal.warps, warps = blockDim.x / WARP - deal.warps, per_group = tokens_of_group(p);
    for (u32 j = from + index * per_group; deal.own.token(j) < chunk.end; j += warps * per_group) {
        if (j != index * per_group) group = load_side_group(p, given, deal.own, j);
        group.valid = group.valid && group.token < chunk.end;
        send_side_group<BY_EXPERT>(p, r, group, chunk.begin);
    }
    if (!CAST && p.scale_bytes)
        for (u32 j = from + index; deal.own.token(j) < chunk.end; j += warps) send_given_scales(p, r, chunk.begin, deal.own.token(j) - chunk.begin);
}

// More tokens than are counted at once: chunk by chunk, this warp's rows from `at` on. All threads. Whether this one has seen bad ids.
template <bool BY_EXPERT, bool CAST> EP_SELDOM bool send_more(const SlottedDispatchParams &p, char *shared, RowPiece at, u32 count) {
    Routing r = make_routing(p, shared);
    GivenRouting given = given_routing(p);
    RowDeal deal = deal_rows(p, CAST);
    FirstLoads f = {};
    f.at = at;
    f.next_at = at.next(p, deal);
    if (!is_row_warp(deal)) f.group = load_first_group(p, given, deal);
    bool bad = false;
    u32 chunk_tokens = r.words * 32;
    for (u32 begin = chunk_tokens; begin < count; begin += chunk_tokens) {
        next_chunk(r);
        Tokens chunk = {begin, min(begin + chunk_tokens, count)};
        bad |= mark_chunk(p, r, given, chunk, count, load_pairs(p, given, chunk, first_pair(p)));
        __syncthreads();
        if (is_row_warp(deal)) {
            if (f.at.token >= chunk.end) continue;
            ReadyPiece<CAST> ready;
            ready.make(p, load_piece(p, deal, f.at), f.at.offset());
            f.next = load_piece(p, deal, f.next_at);
            send_pieces<CAST>(p, r, deal, f, ready, chunk);
        } else {
            send_beside<BY_EXPERT, CAST>(p, r, given, deal, f.group, deal.own.below(begin), chunk);
        }
    }
    return bad;
}

__device__ __forceinline__ Outcome slotted_outcome(const SlottedDispatchParams &p, Guard guard) {
    Outcome o = sent_outcome(guard, DISPATCH_WINDOW, p.window);
    o.claimer = at<HandleRecord>(p.record); // what it had claimed was for rows of the dispatch before
    return o;
}

// Whether this operation, when it has read the window, says so to the peers.
__device__ __forceinline__ bool acknowledges(const SlottedDispatchParams &p) { return p.comm.sync == SYNC_ACK && !(p.flags & KEEP_OPEN); }

// With the end of the reads of this receive; `ends`: the first epoch sent after them.
__device__ __forceinline__ Outcome received_outcome(const SlottedDispatchParams &p, Outcome o, u64 ends) {
    o.received = true;
    if (p.flags & KEEP_OPEN) return o;
    o.kind = DISPATCH_WINDOW;
    o.window = p.window;
    o.ends = ends;
    return o;
}

// Blocks that receive: few where there is little to do, so that few poll.
template <bool BY_EXPERT> __device__ __forceinline__ u32 receivers(const SlottedDispatchParams &p, const RankOutputs &outputs) {
    if (BY_EXPERT || p.flags & (COPY_OUT | COPY_SCALES)) return gridDim.x;
    return min(div_up(outputs.total(), blockDim.x), gridDim.x);
}

// All threads: wait for the peers and write the outputs, in blocks that have a part in it.
template <bool BY_EXPERT> __device__ __forceinline__ void receive_slotted(const SlottedDispatchParams &p, const Routing &r, SlottedShared &s, u64 turn) {
    OperationState &op = s.op;
    RankOutputs outputs = {};
    if (!BY_EXPERT) outputs = rank_outputs(p);
    Team t = whole_block();
    t.blocks = receivers<BY_EXPERT>(p, outputs);
    if (t.block >= t.blocks) return;
    bool here = wait_arrivals(p.comm, op, turn, blockIdx.x == 0, [&](u32 peer) { return r.alive[peer] != 0; });
    if (!here || s.no_room)
        write_no_slots(p, r.stamp, BY_EXPERT, t);
    else if (BY_EXPERT)
        receive_by_expert(p, r, op, t, r.masks);
    else
        receive_by_rank(p, r, op, outputs, t, r.masks);
}

// One thread of block 0, when it needs the buffer's words no more: stores what this operation changes while the peers' rows are
// still on their way. (A failure poisons the buffer, whose words then count no more.)
__device__ __forceinline__ void settle(const SlottedDispatchParams &p, SlottedShared &s, bool sends, u32 count, const Outcome &o) {
    if (!await_check_in(p.comm, s.op)) return;
    if (sends) {
        keep_sent(p, s.op, count);
        ptx::add_relaxed_gpu(&counters(p.comm)->dispatches, 1);
    }
    if (o.received && s.no_room) {
        keep_refused(p);
        report_soft(p.comm, s.op, BUSY, -1, -1);
    } else if (o.received) {
        keep_received(p, s.op);
        HandleRecord *record = at<HandleRecord>(p.record);
        if (!(p.comm.launch & CAPTURED)) record->told = p.comm.launch;
    }
    if (!(o.received && acknowledges(p))) store_outcome(p.comm, s.op, o);
}

// All threads of every block, when there were bad ids: their side warps have noted where.
EP_SELDOM void end_bad_ids(const SlottedDispatchParams &p, OperationState &op) {
    if (pass_ticket(p.comm, op, TICKET_BAD_ID) && threadIdx.x == 0) report_bad_id(p, op);
}

// What does not depend on earlier kernels. All threads, ahead of a block barrier.
__device__ __forceinline__ void prepare_slotted(const SlottedDispatchParams &p, char *shared) { init_routing(p, make_routing(p, shared)); }

template <bool BY_EXPERT, bool CAST, Part PART> __device__ __forceinline__ void slotted_send_body(const SlottedDispatchParams &p, SlottedShared &s, char *shared) {
    constexpr bool WHOLE = PART == Part::WHOLE;
    OperationState &op = s.op;
    Routing r = make_routing(p, shared);
    GivenRouting given = given_routing(p);
    // Everything that does not depend on the buffer's words is on its way when they come. Tokens are dealt by the number
    // the host knows; the device may have fewer.
    RowDeal deal = deal_rows(p, CAST);
    const HandleRecord *record = at<const HandleRecord>(p.record);
    Started started = start(p.comm, record);
    FirstLoads first = load_first(p, r, given, deal);
    u32 count = p.flags & CACHED ? (u32)record->num_tokens : token_count(p);
    if (WHOLE) r.stamp = told_stamp(p);
    bool keeps_books = threadIdx.x == blockDim.x - 1;
    if (keeps_books) s.bad_id = s.no_room = 0;
    begin(p.comm, op, started);
    if (op.status != SUCCESS) return end_slotted(p, op, BY_EXPERT, WHOLE);
    check_in(p.comm);

    Tokens chunk = {0, min(r.words * 32, count)};
    if (warp_id() == blockDim.x / WARP - 1) find_guard(p, s);
    if (mark_chunk(p, r, given, chunk, count, first.experts)) s.bad_id = 1;
    ReadyPiece<CAST> ready;
    if (is_row_warp(deal)) ready.make(p, first.piece, first.at.offset()); // cast while others still count
    __syncthreads();
    Guard guard = s.guard;
    if (guard != WRITE_AT_ONCE && !enter_slowly(p, s)) return end_slotted(p, op, BY_EXPERT, WHOLE);

    if (is_row_warp(deal))
        send_pieces<CAST>(p, r, deal, first, ready, chunk);
    else
        send_beside<BY_EXPERT, CAST>(p, r, given, deal, first.group, 0, chunk);
    if (chunk.end < count && send_more<BY_EXPERT, CAST>(p, shared, first.at, count)) s.bad_id = 1;
    send_counts(p, r, blockIdx.x, gridDim.x);
    __syncthreads();
    if (warp_id() == 0) announce(p.comm, blockIdx.x, gridDim.x, [&](u32 peer) { return r.alive[peer] != 0; });

    Outcome o = slotted_outcome(p, guard);
    if (WHOLE) o = received_outcome(p, o, op.epoch + 1);
    if (keeps_books && blockIdx.x == 0) settle(p, s, true, count, o);
    if (WHOLE) receive_slotted<BY_EXPERT>(p, r, s, op.words.sent[DATA]);
    if (s.bad_id) end_bad_ids(p, op);
    leave(p.comm, op, op.words.sent[DATA], o, o.received && acknowledges(p));
}

template <bool BY_EXPERT> __device__ __forceinline__ void slotted_receive_body(const SlottedDispatchParams &p, SlottedShared &s, char *shared) {
    OperationState &op = s.op;
    Routing r = make_routing(p, shared);
    const HandleRecord *record = at<const HandleRecord>(p.record);
    Started started = start(p.comm, record);
    u64 turn = record->dispatch_turn, epoch = record->dispatch_epoch;
    bool refused = record->dispatch_refused != 0;
    bool keeps_books = threadIdx.x == blockDim.x - 1;
    r.stamp = told_stamp(p);
    init_ranks(p, r, threadIdx.x);
    begin(p.comm, op, started);
    u64 next = op.epoch;
    __syncthreads();
    if (threadIdx.x == 0) {
        op.epoch = epoch;
        if (refused && op.status == SUCCESS) op.status = BUSY;
        s.no_room = is_area_taken(p, op);
    }
    __syncthreads();
    if (op.status != SUCCESS) return end_slotted(p, op, BY_EXPERT, true);
    check_in(p.comm);
    Outcome o = received_outcome(p, no_outcome(), next);
    if (keeps_books && blockIdx.x == 0) settle(p, s, false, 0, o);
    receive_slotted<BY_EXPERT>(p, r, s, turn);
    leave(p.comm, op, turn, o, acknowledges(p));
}

} // namespace ep
