// Slotted dispatch, receiving: what is the same for both layouts, and the outputs by rank. Everything is read as if all
// rows had come, beside the counts that tell which have, by as many threads as there are things to read: one trip to
// memory.
#pragma once
#include "outputs.cuh"
#include "slotted_route.cuh"

namespace ep {

// What `source` has sent to this rank (number 0), or to the local expert number - 1. Whatever a window holds, it is in
// bounds.
__device__ __forceinline__ u32 received_count(const SlottedDispatchParams &p, const Routing &r, u32 source, u32 number) {
    u32 n = at<const u32>(own_base(p.comm) + p.side_counts)[source * p.count_stride + number];
    return r.alive[source] ? min(n, p.max_tokens) : 0;
}

// The source of a row, as the outputs have it.
__device__ __forceinline__ i64 source_of(const SlottedDispatchParams &p, u32 source, u32 slot) { return (i64)source * p.max_tokens + slot / p.num_topk; }

// A number for a host that asks: word 0 the rows handed out, 1 + i those of local expert i. Each carries the launch that
// wrote it, so that none is taken for another's and nothing has to be ordered. The host waits for a launch of its own, or
// for any of a graph: both can be seen in 32 bits.
constexpr u32 TOLD_BY_GRAPH = 1u << 31;
__device__ __forceinline__ u32 told_stamp(const SlottedDispatchParams &p) {
    if (!(p.comm.launch & CAPTURED)) return (u32)p.comm.launch & ~TOLD_BY_GRAPH;
    return (u32)at<const HandleRecord>(p.record)->told | TOLD_BY_GRAPH;
}
__device__ __forceinline__ void tell(const SlottedDispatchParams &p, u32 stamp, u32 word, u32 number) { at<u64>(p.told)[word] = (u64)stamp << 32 | number; }

// Rows that were sent here, that were handed out, and that would be with larger slabs. One lane.
__device__ __forceinline__ void write_totals(const SlottedDispatchParams &p, const Routing &r, const OperationState &op, u32 sent, u32 present, u32 needed) {
    at<i64>(p.out.true_rows)[0] = sent;
    at<i64>(p.out.true_rows)[1] = needed;
    tell(p, r.stamp, 0, present);
    if (present < needed) report_soft(p.comm, op, CAPACITY_EXCEEDED, (i64)p.out.rows, needed);
}

// One to four words of an array that rows have in the window, one for each k, to the slabs of an output; blanks past the
// source's rows.
__device__ __forceinline__ void copy_slab_words(const SlottedDispatchParams &p, const Routing &r, u64 out, u64 window, u32 blank, u32 i, bool wide) {
    u32 per_row = p.num_topk, capacity = (u32)p.out.rows * per_row, source = divide(i, capacity, p.slab_magic), within = i - source * capacity;
    u64 from = window + ((u64)source * p.max_tokens * per_row + within) * 4;
    u32 end = received_count(p, r, source, 0) * per_row;
    if (!wide) {
        u32 v = *at<const u32>(from);
        at<u32>(out)[i] = within < end ? v : blank;
        return;
    }
    uint4 v = ptx::load_row16(at<const char>(from));
    v.x = within < end ? v.x : blank;
    v.y = within + 1 < end ? v.y : blank;
    v.z = within + 2 < end ? v.z : blank;
    v.w = within + 3 < end ? v.w : blank;
    ptx::store_row16(at<char>(out + (u64)i * 4), v);
}

// The slot and the source of one row.
__device__ __forceinline__ void copy_slot(const SlottedDispatchParams &p, const Routing &r, u32 i) {
    u32 source = i / p.max_tokens, within = i % p.max_tokens, slot = at<const u32>(own_base(p.comm) + p.side_slots)[i];
    bool here = within < received_count(p, r, source, 0);
    if (here) at<u32>(p.kept.recv_slots)[i] = slot;
    if (within < p.out.rows) at<i64>(p.out.source)[source * p.out.rows + within] = here ? source_of(p, source, slot) : -1;
}

__device__ __forceinline__ void write_expert_count(const SlottedDispatchParams &p, u32 stamp, u32 local, u32 count) {
    at<u32>(p.out.expert_counts)[local] = count;
    ptx::add_relaxed_gpu(expert_counter(p.comm, local), count);
    tell(p, stamp, 1 + local, count);
}

// Rows of a local expert, where all rows are handed out.
__device__ __forceinline__ void sum_expert_count(const SlottedDispatchParams &p, const Routing &r, u32 local) {
    u32 sum = 0;
#pragma unroll 8
    for (u32 source = 0; source < p.comm.ranks; source++) sum += received_count(p, r, source, 1 + local);
    write_expert_count(p, r.stamp, local, sum);
}

// The same where slabs are smaller than what may come: by the ids of the rows that fit. One block's team; `counts`: a word of
// shared memory per local expert.
EP_SELDOM void count_present_experts(const SlottedDispatchParams &p, Routing r, u32 *counts, Team t) {
    for (u32 i = t.index; i < p.local_experts; i += t.threads) counts[i] = 0;
    t.sync();
    const u32 *ids = at<const u32>(own_base(p.comm) + p.side_ids);
    for (u32 source = 0; source < p.comm.ranks; source++) {
        u32 n = min(received_count(p, r, source, 0), (u32)p.out.rows) * p.num_topk;
        for (u32 i = t.index; i < n; i += t.threads) {
            u32 id = ids[(u64)source * p.max_tokens * p.num_topk + i];
            if (id < p.local_experts) atomicAdd(counts + id, 1);
        }
    }
    t.sync();
    for (u32 i = t.index; i < p.local_experts; i += t.threads) write_expert_count(p, r.stamp, i, counts[i]);
}

// Rows of each source, by rank. One warp.
__device__ inline void write_rank_counts(const SlottedDispatchParams &p, const Routing &r, const OperationState &op) {
    i32 sent = 0, fit = 0;
    for (u32 source = lane_id(); source < p.comm.ranks; source += WARP) {
        u32 n = received_count(p, r, source, 0), here = min(n, (u32)p.out.rows);
        at<u32>(p.kept.recv_counts)[source] = n;
        at<u32>(p.out.rank_counts)[source] = here;
        count_received(p.comm, source, n, p.wire_bytes);
        sent += n;
        fit += here;
    }
    sent = ptx::warp_sum(sent);
    fit = ptx::warp_sum(fit);
    if (lane_id() == 0) write_totals(p, r, op, sent, fit, sent);
}

// Rows and scales from the window to caller memory.
EP_SELDOM void copy_slotted_rows(const SlottedDispatchParams &p, Routing r, Team t) {
    u64 base = own_base(p.comm);
    u32 rows = (u32)p.out.rows * p.comm.ranks, warps = t.blocks * t.warps();
    for (u32 i = t.warp() * t.blocks + t.block; i < rows; i += warps) { // the rows of a slab go to different blocks
        u32 source = i % p.comm.ranks, within = i / p.comm.ranks;
        if (within >= received_count(p, r, source, 0)) continue;
        u64 row = (u64)source * p.max_tokens + within;
        if (p.flags & COPY_OUT) {
            u64 from = base + p.rows + row * p.row_bytes, to = p.out.x + source * p.out.slot_stride + within * p.out.x_stride;
#pragma unroll 4
            for (u32 at_byte = lane_id() * 16; at_byte < p.row_bytes; at_byte += WARP * 16)
                ptx::store_row16(at<char>(to + at_byte), ptx::load_row16(at<const char>(from + at_byte)));
        }
        if (p.flags & COPY_SCALES)
            store_scales_at(p, at<const char>(base + p.scales + row * p.scale_stride), p.out.scales + source * p.out.scale_slot_stride + within * p.out.scale_row_stride,
                            lane_id(), WARP);
    }
}

// The side outputs by rank as one list of things to do, each kind in whole warps.
struct RankOutputs {
    u32 width;               // words at once
    u32 side, slots, experts; // how many: of each side array, of rows, of experts
    bool clamped;

    __device__ __forceinline__ u32 total() const { return 2 * side + slots + experts + WARP; }
};

__device__ __forceinline__ RankOutputs rank_outputs(const SlottedDispatchParams &p) {
    RankOutputs o;
    u32 per_slab = (u32)p.out.rows * p.num_topk;
    auto whole_warps = [](u32 n) { return div_up(n, WARP) * WARP; };
    o.width = per_slab % 4 == 0 && p.max_tokens * p.num_topk % 4 == 0 && (p.out.ids | p.out.weights) % 16 == 0 ? 4 : 1;
    o.clamped = p.out.rows < p.max_tokens;
    o.side = whole_warps(p.comm.ranks * per_slab / o.width);
    o.slots = whole_warps(p.comm.ranks * p.max_tokens);
    o.experts = o.clamped ? 0 : whole_warps(p.local_experts);
    return o;
}

// All outputs by rank; `shared` holds a word for each local expert.
__device__ inline void receive_by_rank(const SlottedDispatchParams &p, const Routing &r, const OperationState &op, const RankOutputs &o, const Team &t, u32 *shared) {
    u64 base = own_base(p.comm);
    u32 words = p.comm.ranks * (u32)p.out.rows * p.num_topk, rows = p.comm.ranks * p.max_tokens;
    for (u32 i = t.block * t.threads + t.index; i < o.total(); i += t.blocks * t.threads) {
        if (i < 2 * o.side) {
            bool ids = i < o.side;
            u32 word = (ids ? i : i - o.side) * o.width;
            if (word < words) copy_slab_words(p, r, ids ? p.out.ids : p.out.weights, base + (ids ? p.side_ids : p.side_weights), ids ? FULL : 0, word, o.width == 4);
        } else if (i < 2 * o.side + o.slots) {
            if (i - 2 * o.side < rows) copy_slot(p, r, i - 2 * o.side);
        } else if (i < 2 * o.side + o.slots + o.experts) {
            u32 local = i - 2 * o.side - o.slots;
            if (local < p.local_experts) sum_expert_count(p, r, local);
        } else {
            write_rank_counts(p, r, op);
        }
    }
    if (p.flags & (COPY_OUT | COPY_SCALES)) copy_slotted_rows(p, r, t);
    if (o.clamped && t.block == 0) count_present_experts(p, r, shared, t);
}

// A dispatch that ends unsatisfied still leaves counts of zero and no ids.
EP_SELDOM void write_no_slots(const SlottedDispatchParams &p, u32 stamp, bool by_expert, Team t) {
    u64 rows = p.out.rows * (by_expert ? p.local_experts : p.comm.ranks), ids = by_expert ? rows : rows * p.num_topk;
    fill_words(p.out.ids, 0, ids, FULL, t);
    fill_words(p.out.weights, 0, ids, 0, t);
    fill_words(p.out.source, 0, rows * 2, FULL, t);
    if (t.block != 0) return;
    for (u32 i = t.index; by_expert && i < p.local_experts * p.comm.ranks * 2; i += t.threads) at<u32>(p.out.source_ranges)[i] = 0;
    for (u32 i = t.index; i < p.comm.ranks; i += t.threads) at<u32>(p.out.rank_counts)[i] = 0;
    for (u32 i = t.index; i < 2 * p.comm.ranks; i += t.threads) at<u32>(p.kept.recv_counts)[i] = 0;
    for (u32 i = t.index; i < p.local_experts; i += t.threads) write_expert_count(p, stamp, i, 0);
    if (t.index < 2) at<i64>(p.out.true_rows)[t.index] = 0;
    if (t.index == 0) tell(p, stamp, 0, 0);
}

} // namespace ep
