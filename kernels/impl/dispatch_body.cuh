// The bodies of the packed dispatch kernels.
#pragma once
#include "cast_rows.cuh"
#include "dispatch.cuh"

namespace ep {

// Tells the peers of each slice of this block's tokens as soon as all row warps have sent it. One warp.
__device__ inline void slice_role(const DispatchParams &p, DispatchShared &s, Tokens tokens) {
    u32 per_slice = 1u << p.slice_shift;
    for (u32 begin = tokens.begin; begin < tokens.end; begin += per_slice) {
        u32 n = min(begin + per_slice, tokens.end) - tokens.begin; // tokens of the block up to the slice's end
        for (u32 w = lane_id(); w < p.row_warps; w += WARP) {
            u32 needed = w < n ? div_up(n - w, p.row_warps) : 0;
            // Bounded: the row warps wait for no peer.
            for (u32 tries = 0; tries < 1u << 24 && ptx::read_acquire_shared(&s.left[w]) < needed; tries++) ptx::sleep(50);
        }
        __syncwarp();
        tell_progress(p, s.op, begin >> p.slice_shift, lane_id(), WARP);
    }
}

// This block's share of the rows of every other rank. All warps call it, the first writes the words, which lie where the
// counting area was; a block barrier follows.
__device__ inline Arrivals find_arrivals(const DispatchParams &p, const DispatchShared &s, char *shared) {
    const i32 *matrix = counts_of(p, s);
    u32 columns = count_columns(p), ranks = p.comm.ranks;
    u32 *words = reinterpret_cast<u32 *>(shared);
    Arrivals a = {words, words + ranks, words + 2 * ranks, words + 3 * ranks, 0, 0};
    u64 first = 0;
    for (u32 source = 0; source < ranks; source++) {
        u64 n = is_alive(p.comm, source) ? (u32)matrix[(u64)source * columns + p.comm.rank] : 0, start = first;
        first += n;
        if (source == p.comm.rank || start >= p.max_recv_rows) continue;
        n = min(n, p.max_recv_rows - start);
        u32 begin = (u32)(n * blockIdx.x / gridDim.x), end = (u32)(n * (blockIdx.x + 1) / gridDim.x);
        if (begin == end) continue;
        if (threadIdx.x == 0) {
            a.source[a.sources] = source;
            a.begin[a.sources] = (u32)start + begin;
            a.count[a.sources] = end - begin;
            a.front[a.sources] = 0;
        }
        a.sources++;
        a.longest = max(a.longest, end - begin);
    }
    return a;
}

// The one warp of a block that watches what arrives: polls in every warp would slow the memory of the whole device.
__device__ inline void watch_role(const DispatchParams &p, DispatchShared &s, const Arrivals &a) {
    OperationState &op = s.op;
    u32 open = a.sources;
    u64 limit = timeout_of(p.comm, op);
    Standstill still = {ptx::nanoseconds(), 0, false};
    for (u32 polls = 1; open; polls++) {
        bool moved = false;
        open = 0;
        for (u32 slot = 0; slot < a.sources; slot++) {
            u32 source = a.source[slot], front = ptx::read_acquire_shared(&a.front[slot]);
            // Slices beyond those this block needs may never be sent: the last row's slice is known with the side data.
            u64 last = (u64)a.begin[slot] + a.count[slot] - 1;
            u32 needed = 1;
            if (front) needed = 2 + ((u32)(at<const i64>(own_base(p.comm) + p.side_source)[last] - (i64)source * p.max_tokens) >> p.slice_shift);
            if (front >= needed) continue;
            if (!open++) still.peer = source;
            if (front == 1) { // begin where this block's first row lies
                u32 token = (u32)(at<const i64>(own_base(p.comm) + p.side_source)[a.begin[slot]] - (i64)source * p.max_tokens);
                front += token >> p.slice_shift;
            }
            u32 word = front ? front - 1 + lane_id() : p.slices;
            bool mine = front ? word < p.slices : lane_id() == 0;
            const u64 *address = progress_word(p, p.comm.rank, source, min(word, p.slices));
            bool here = mine && ptx::load_relaxed_sys(address) >= op.epoch;
            u32 n = __ffs((i32)~__ballot_sync(FULL, here)) - 1;
            if (__all_sync(FULL, here)) n = WARP;
            if (!n) continue;
            moved = true;
            if (lane_id() < n) ptx::load_acquire_sys(address);
            __syncwarp();
            if (lane_id() == 0) ptx::raise_release_shared(&a.front[slot], front ? front + n : 1);
            __syncwarp();
        }
        if (moved || !open) {
            still.since = ptx::nanoseconds();
            still.sign = false;
            continue;
        }
        ptx::sleep(300);
        bool late = ptx::nanoseconds() - still.since > limit;
        if (polls % STATE_POLLS == 0 || late) {
            limit = timeout_of(p.comm, op);
            if (!look_around(p.comm, op, late, still)) return;
        }
    }
}

// Rows of other ranks to their expert rows, as their slices arrive.
template <bool CAST> __device__ inline void expand_role(const DispatchParams &p, DispatchShared &s, const Ring &ring, const Arrivals &a) {
    u64 base = own_base(p.comm);
    auto wait_front = [&](u32 slot, u32 needed) {
        while (ptx::read_acquire_shared(&a.front[slot]) < needed) {
            if (has_failed(s.op)) return;
            ptx::sleep(100);
        }
    };
    auto ready = [&](const ArrivedRow &r) {
        if (lane_id() == 0) {
            wait_front(r.slot, 1);
            u32 token = (u32)(at<const i64>(base + p.side_source)[r.row] - (i64)a.source[r.slot] * p.max_tokens);
            wait_front(r.slot, 2 + (token >> p.slice_shift));
            ptx::fence_proxy_async();
        }
        __syncwarp();
    };
    auto arrived = [&](const ArrivedRow &r, i32 place) {
        if constexpr (CAST) // otherwise scales come with the side data
            for (u32 mask = __ballot_sync(FULL, place >= 0); mask; mask &= mask - 1)
                store_scales(p, at<const char>(base + p.scales + r.row * p.scale_stride), (u64)__shfl_sync(FULL, place, __ffs((i32)mask) - 1), lane_id(), WARP);
    };
    expand_rows(p, ring, a, &s.taken, ready, arrived);
}

template <bool CAST>
__device__ __forceinline__ void send_role(const DispatchParams &p, DispatchShared &s, Ring &ring, const Homes &homes, Tokens tokens, bool expand_own) {
    RowPieces rows = row_pieces(p, tokens, warp_id(), p.row_warps, CAST);
    Sending sending = {homes, expand_own, expand_own ? &s.left[warp_id()] : nullptr};
    if constexpr (CAST)
        send_cast_rows(p, ring, rows, sending);
    else
        send_rows(p, ring, rows, sending);
    ring.used += rows.items();
}

// After all rows have left: the last block signals. True in that block.
__device__ __forceinline__ bool signal_sent(const DispatchParams &p, DispatchShared &s) {
    if (!pass_ticket(p.comm, s.op, TICKET_SENT)) return false;
    forget_pads(p);
    signal_peers(p.comm, DATA, s.op.words.sent[DATA], signal_value(p.comm, s.op.epoch));
    return true;
}

__device__ __forceinline__ Outcome dispatch_outcome(const DispatchParams &p, const DispatchShared &s, Guard guard) {
    Outcome o = sent_outcome(guard, DISPATCH_WINDOW, p.window);
    o.signals[COUNTS] = p.flags & CACHED ? 0 : (u32)(s.exchange - s.op.words.sent[COUNTS]) + 1;
    o.claimer = at<HandleRecord>(p.record); // what it had claimed was for rows of the dispatch before
    return o;
}

// Rows from the window to caller memory, once all have come.
__device__ inline void copy_out(const DispatchParams &p, DispatchShared &s, char *dynamic, u64 rows) {
    if (warp_id() >= p.row_warps + p.expand_warps) return;
    if (lane_id() == 0) ptx::fence_proxy_async();
    u64 base = own_base(p.comm);
    u32 warps = p.row_warps + p.expand_warps;
    u64 n = min(rows, p.out.rows), begin = n * blockIdx.x / gridDim.x, end = n * (blockIdx.x + 1) / gridDim.x;
    for (u64 row = begin + warp_id(); row < end; row += warps) {
        const char *from = at<const char>(base + p.rows + row * p.row_stride);
        char *to = at<char>(p.out.x + row * p.out.x_stride);
        for (u32 i = lane_id() * 16; i < p.row_bytes; i += WARP * 16) ptx::store_row16(to + i, ptx::load_row16(from + i));
        if (p.scale_bytes) store_scales(p, at<const char>(base + p.scales + row * p.scale_stride), row, lane_id(), WARP);
    }
}

// What remains of a receive when every row is here: all threads of every block.
template <bool BY_EXPERT> __device__ inline void receive_all(const DispatchParams &p, DispatchShared &s, char *dynamic) {
    OperationState &op = s.op;
    const i32 *matrix = at<const i32>(p.counts);
    Received r = sum_received(p, matrix);
    if (BY_EXPERT) sum_experts(p, matrix, r, true, false);
    Team all = whole_block();
    bool counts = counts_rows(r, BY_EXPERT);
    if (blockIdx.x == 0 && warp_id() == 0) {
        write_counts(p, op, matrix, BY_EXPERT);
        if (!counts) tell_host(p);
    }
    fill_past_end(p, BY_EXPERT ? r.expert_rows : r.rows, BY_EXPERT ? 1 : p.num_topk, all);
    if constexpr (!BY_EXPERT) {
        receive_side_by_rank(p, r.rows, all);
        if (p.flags & COPY_OUT) copy_out(p, s, dynamic, r.rows);
        if (!counts || blockIdx.x != 0) return;
        count_rows(p, r.handed, reinterpret_cast<i32 *>(counting_area(p, dynamic)), all);
        if (warp_id() == 0) tell_host(p);
        return;
    }
    u64 begin = r.rows * blockIdx.x / gridDim.x, end = r.rows * (blockIdx.x + 1) / gridDim.x;
    u32 ring_warps = p.row_warps + p.expand_warps;
    u32 *words = reinterpret_cast<u32 *>(counting_area(p, dynamic));
    Arrivals a = {words, words + 1, words + 2, words + 3, 1, (u32)(end - begin)};
    if (threadIdx.x == 0) {
        a.begin[0] = (u32)begin;
        a.count[0] = (u32)(end - begin);
    }
    count_pads(p, matrix, pads_of(p, dynamic));
    __syncthreads();
    if (warp_id() < ring_warps) {
        if (lane_id() == 0) ptx::fence_proxy_async();
        __syncwarp();
        expand_rows(p, ring_of(p, s, dynamic, warp_id()), a, &s.taken, [](const ArrivedRow &) {}, [](const ArrivedRow &, i32) {});
    } else {
        Team t = {threadIdx.x - ring_warps * WARP, blockDim.x - ring_warps * WARP, 1, blockIdx.x, gridDim.x};
        expand_side(p, begin, end, t, true);
    }
    pad_role(p, dynamic);
}

// All threads, ahead of a block barrier.
__device__ __forceinline__ void init_dispatch_shared(const DispatchParams &p, DispatchShared &s, char *dynamic) {
    if (warp_id() < p.row_warps + p.expand_warps && lane_id() == 0) init_ring(ring_of(p, s, dynamic, warp_id()));
    if (threadIdx.x < MAX_WARPS) s.left[threadIdx.x] = 0;
    if (threadIdx.x == 0) s.taken = s.counted = 0;
    uint4 *zeros = reinterpret_cast<uint4 *>(dynamic + ring_bytes(p));
    for (u32 i = threadIdx.x; i < ZERO_BYTES / 16; i += blockDim.x) zeros[i] = make_uint4(0, 0, 0, 0);
    ptx::fence_proxy_async_shared(); // the zeros are read by bulk copies
}

// Of what sends, what does not depend on earlier kernels. The same.
__device__ inline void prepare_dispatch(const DispatchParams &p, DispatchShared &s, char *dynamic, bool by_expert) {
    load_homes(p, homes_area(p, dynamic));
    clear_histograms(p, histograms_of(p, dynamic, by_expert));
    init_dispatch_shared(p, s, dynamic);
}

template <bool BY_EXPERT, bool CAST, Part PART> __device__ __forceinline__ void dispatch_send_body(const DispatchParams &p, DispatchShared &s, char *dynamic) {
    OperationState &op = s.op;
    constexpr bool WHOLE = PART == Part::WHOLE;
    constexpr bool SLICES = WHOLE && BY_EXPERT;
    bool cached = p.flags & CACHED;
    const HandleRecord *record = at<const HandleRecord>(p.record);
    u32 count = cached ? (u32)record->num_tokens : token_count(p);
    Tokens tokens = tokens_of_block(p, count, SLICES);
    if (!cached) prefetch_routing(p, tokens);
    begin(p.comm, op, record);
    Guard guard = WRITE_AT_ONCE;
    if (!enter(p, op, guard, !(p.flags & CACHED))) return end_unsatisfied(p, s, BY_EXPERT, WHOLE);
    u32 ring_warps = p.row_warps + p.expand_warps;
    Homes homes = homes_of(p, dynamic);
    auto fetch_first_rows = [&] { // behind what is counted, which they would hold up
        if (warp_id() >= p.row_warps) return;
        RowPieces rows = row_pieces(p, tokens, warp_id(), p.row_warps, CAST);
        prime_ring(ring_of(p, s, dynamic, warp_id()), rows.items(), rows);
    };
    if (cached) {
        fetch_first_rows();
        if (p.given.topk_weights) replace_weights(p, tokens);
        __syncthreads();
    } else if (!route(p, s, histograms_of(p, dynamic, BY_EXPERT), tokens, BY_EXPERT, fetch_first_rows)) {
        if (warp_id() < p.row_warps) drain_ring(ring_of(p, s, dynamic, warp_id()), row_pieces(p, tokens, warp_id(), p.row_warps, CAST).items());
        return end_unsatisfied(p, s, BY_EXPERT, WHOLE);
    }
    Arrivals arrivals = {};
    if (SLICES) {
        arrivals = find_arrivals(p, s, counting_area(p, dynamic));
        count_pads(p, counts_of(p, s), pads_of(p, dynamic));
        __syncthreads();
    }

    if (warp_id() < ring_warps) {
        Ring ring = ring_of(p, s, dynamic, warp_id());
        if (warp_id() < p.row_warps) send_role<CAST>(p, s, ring, homes, tokens, SLICES);
        if (SLICES) {
            expand_role<CAST>(p, s, ring, arrivals); // also who has nothing left to send
            pad_role(p, dynamic);
        }
    } else if (SLICES && warp_id() == ring_warps + p.side_warps) {
        slice_role(p, s, tokens);
    } else if (SLICES && warp_id() == ring_warps + p.side_warps + 1) {
        watch_role(p, s, arrivals);
    } else if (warp_id() >= ring_warps && warp_id() < ring_warps + p.side_warps) {
        Team t = {threadIdx.x - ring_warps * WARP, p.side_warps * WARP, 1, blockIdx.x, gridDim.x};
        if (WHOLE) {
            side_role(p, s, homes, dynamic, tokens, t, BY_EXPERT, CAST);
        } else {
            send_side_data(p, homes, tokens, t.warp(), t.warps(), BY_EXPERT, !CAST);
            if (t.block == 0 && t.warp() == 0) count_dispatch(p, counts_of(p, s));
        }
        if (!cached) keep_counts(p, s.exchange, t);
        if (SLICES) pad_role(p, dynamic);
    } else if (WHOLE && blockIdx.x == 0 && warp_id() == blockDim.x / WARP - 1) {
        count_role(p, s, BY_EXPERT);
    }
    __syncthreads();
    if (op.failed != SUCCESS) {
        fail(p.comm, op, 0);
        return end_unsatisfied(p, s, BY_EXPERT, WHOLE);
    }

    bool last = signal_sent(p, s);
    if constexpr (!WHOLE) {
        if (last && threadIdx.x == 0) {
            keep_sent(p, op, count);
            finish(p.comm, op, dispatch_outcome(p, s, guard));
        }
        return;
    }
    bool copies = !BY_EXPERT && (p.flags & COPY_OUT);
    if (!last && !copies) return;
    if (!wait_peers(p.comm, op, DATA, op.words.sent[DATA], op.epoch, last)) {
        Team alone = {threadIdx.x, blockDim.x, 0, 0, 1};
        write_nothing(p, BY_EXPERT, copies ? whole_block() : alone);
        return;
    }
    if (copies) {
        copy_out(p, s, dynamic, sum_received(p, at<const i32>(p.counts)).rows);
        if (!pass_ticket(p.comm, op, TICKET_RECEIVED)) return;
    }
    Outcome o = dispatch_outcome(p, s, guard);
    o.received = true;
    if (!(p.flags & KEEP_OPEN)) {
        o.ends = op.epoch + 1;
        o.acknowledged = acknowledge(p.comm, op);
    }
    if (threadIdx.x == 0) {
        keep_sent(p, op, count);
        keep_received(p, op);
        finish(p.comm, op, o);
    }
}

template <bool BY_EXPERT> __device__ __forceinline__ void dispatch_receive_body(const DispatchParams &p, DispatchShared &s, char *dynamic) {
    OperationState &op = s.op;
    const HandleRecord *record = at<const HandleRecord>(p.record);
    init_dispatch_shared(p, s, dynamic);
    begin(p.comm, op, record);
    if (op.status != SUCCESS) return end_unsatisfied(p, s, BY_EXPERT, true);
    u64 turn = record->dispatch_turn, next = op.epoch;
    bool refused = record->dispatch_refused != 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        op.epoch = record->dispatch_epoch;
        if (refused) op.status = BUSY;
    }
    __syncthreads();
    if (refused) return end_unsatisfied(p, s, BY_EXPERT, true);
    if (!wait_peers(p.comm, op, DATA, turn, op.epoch, blockIdx.x == 0)) return write_nothing(p, BY_EXPERT, whole_block());
    bool no_room = is_area_taken(p, op); // it has been sent, so it is received, but handed out it cannot be
    if (no_room)
        write_nothing(p, BY_EXPERT, whole_block());
    else
        receive_all<BY_EXPERT>(p, s, dynamic);
    if (!pass_ticket(p.comm, op, TICKET_RECEIVED)) return;
    forget_pads(p);
    Outcome o = no_outcome();
    o.received = true;
    o.kind = DISPATCH_WINDOW;
    if (!(p.flags & KEEP_OPEN)) {
        o.window = p.window;
        o.ends = next;
        o.acknowledged = acknowledge(p.comm, op);
    }
    if (threadIdx.x != 0) return;
    if (no_room) {
        report_soft(p.comm, op, BUSY, -1, -1);
        keep_refused(p);
    } else {
        keep_received(p, op);
    }
    finish(p.comm, op, o);
}

} // namespace ep
