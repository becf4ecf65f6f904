// Slotted dispatch, receiving: what is the same for both layouts, and the outputs by rank. Everything is read as if all
// rows had come, beside the counts that tell which have: one trip to memory.
#pragma once
#include "outputs.cuh"
#include "slotted_route.cuh"

namespace ep {

// What `source` has sent to this rank (number 0), or to the local expert number - 1.
__device__ __forceinline__ u32 received_count(const SlottedDispatchParams &p, u32 source, u32 number) {
    if (!is_alive(p.comm, source)) return 0;
    u32 n = at<const u32>(own_base(p.comm) + p.side_counts)[source * p.count_stride + number];
    return min(n, p.max_tokens); // whatever a window holds
}

// The source of a row, as the outputs have it.
__device__ __forceinline__ i64 source_of(const SlottedDispatchParams &p, u32 source, u32 slot) { return (i64)source * p.max_tokens + slot / p.num_topk; }

// Rows and totals of a receive, by one warp.
struct SlotTotals {
    u64 sent, present, needed; // rows sent here, handed out, and what would be with larger slabs
};

__device__ __forceinline__ void tell_totals(const SlottedDispatchParams &p, const OperationState &op, const SlotTotals &t) {
    if (lane_id() != 0) return;
    at<i64>(p.out_true_rows)[0] = (i64)t.sent;
    at<i64>(p.out_true_rows)[1] = (i64)t.needed;
    HandleRecord *record = at<HandleRecord>(p.record);
    record->rows = t.present;
    record->expert_rows = t.present;
    if (t.present < t.needed) report_soft(p.comm, op, CAPACITY_EXCEEDED, (i64)p.out_rows, (i64)t.needed);
}

// Rows of each source. One warp; returns how many there are.
__device__ inline u64 write_rank_counts(const SlottedDispatchParams &p, u32 capacity, u64 &present) {
    i32 sent = 0, fit = 0;
    for (u32 source = lane_id(); source < p.comm.ranks; source += WARP) {
        u32 n = received_count(p, source, 0);
        at<u32>(p.recv_counts)[source] = n;
        at<u32>(p.out_rank_counts)[source] = min(n, capacity);
        sent += n;
        fit += min(n, capacity);
    }
    present = (u32)ptx::warp_sum(fit);
    return (u32)ptx::warp_sum(sent);
}

// Words of one kind that rows have in the window, `per_row` of them, to the slabs of an output; blanks past each source's
// rows. All threads of the team.
__device__ inline void copy_slabs(const SlottedDispatchParams &p, u64 out, u64 window, u32 per_row, u32 blank, const Team &t) {
    u32 capacity = (u32)p.out_rows * per_row, stride = p.max_tokens * per_row, words = p.comm.ranks * capacity;
    u32 me = t.block * t.threads + t.index, all = t.blocks * t.threads;
    if (capacity % 4 || stride % 4) {
        for (u32 i = me; i < words; i += all) {
            u32 source = i / capacity, within = i % capacity, v = at<const u32>(window)[source * (u64)stride + within];
            at<u32>(out)[i] = within < received_count(p, source, 0) * per_row ? v : blank;
        }
        return;
    }
    for (u32 i = me * 4; i < words; i += all * 4) {
        u32 source = i / capacity, within = i % capacity;
        uint4 v = ptx::load_row16(at<const char>(window + (source * (u64)stride + within) * 4));
        u32 end = received_count(p, source, 0) * per_row;
        v.x = within < end ? v.x : blank;
        v.y = within + 1 < end ? v.y : blank;
        v.z = within + 2 < end ? v.z : blank;
        v.w = within + 3 < end ? v.w : blank;
        ptx::store_row16(at<char>(out + (u64)i * 4), v);
    }
}

// Slots and sources of the rows.
__device__ inline void copy_slots(const SlottedDispatchParams &p, const Team &t) {
    const u32 *slots = at<const u32>(own_base(p.comm) + p.side_slots);
    for (u32 i = t.block * t.threads + t.index; i < p.comm.ranks * p.max_tokens; i += t.blocks * t.threads) {
        u32 source = i / p.max_tokens, within = i % p.max_tokens, slot = slots[i];
        bool here = within < received_count(p, source, 0);
        if (here) at<u32>(p.recv_slots)[i] = slot;
        if (within < p.out_rows) at<i64>(p.out_source)[source * p.out_rows + within] = here ? source_of(p, source, slot) : -1;
    }
}

// Rows of each local expert, where all rows are handed out.
__device__ inline void write_expert_counts(const SlottedDispatchParams &p, const Team &t) {
    for (u32 local = t.index; local < p.local_experts; local += t.threads) {
        u32 sum = 0;
#pragma unroll 4
        for (u32 source = 0; source < p.comm.ranks; source++) sum += received_count(p, source, 1 + local);
        at<u32>(p.out_expert_counts)[local] = sum;
        at<u32>(p.told_counts)[local] = sum;
    }
}

// The same where slabs are smaller than what may come: by the ids of the rows that fit. One block; `counts`: a word of
// shared memory per local expert.
__device__ inline void count_present_experts(const SlottedDispatchParams &p, u32 *counts) {
    for (u32 i = threadIdx.x; i < p.local_experts; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    const u32 *ids = at<const u32>(own_base(p.comm) + p.side_ids);
    for (u32 source = 0; source < p.comm.ranks; source++) {
        u32 n = min(received_count(p, source, 0), (u32)p.out_rows) * p.num_topk;
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            u32 id = ids[(u64)source * p.max_tokens * p.num_topk + i];
            if (id < p.local_experts) atomicAdd(counts + id, 1);
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < p.local_experts; i += blockDim.x) at<u32>(p.out_expert_counts)[i] = at<u32>(p.told_counts)[i] = counts[i];
}

// Rows and scales from the window to caller memory.
__device__ inline void copy_slotted_rows(const SlottedDispatchParams &p, const Team &t) {
    u64 base = own_base(p.comm);
    u32 rows = (u32)p.out_rows * p.comm.ranks, warps = t.blocks * t.warps();
    for (u32 i = t.warp() * t.blocks + t.block; i < rows; i += warps) { // the rows of a slab go to different blocks
        u32 source = i % p.comm.ranks, within = i / p.comm.ranks;
        if (within >= received_count(p, source, 0)) continue;
        u64 row = (u64)source * p.max_tokens + within;
        if (p.flags & COPY_OUT) {
            u64 from = base + p.rows + row * p.row_bytes, to = p.out_x + source * p.out_slot_stride + within * p.out_x_stride;
#pragma unroll 4
            for (u32 at_byte = lane_id() * 16; at_byte < p.row_bytes; at_byte += WARP * 16)
                ptx::store_row16(at<char>(to + at_byte), ptx::load_row16(at<const char>(from + at_byte)));
        }
        if (p.flags & COPY_SCALES)
            store_scales_at(p, at<const char>(base + p.scales + row * p.scale_stride), p.out_scales + source * p.out_scale_slot_stride + within * p.out_scale_row_stride,
                            lane_id(), WARP);
    }
}

// All outputs by rank, by the first `blocks` blocks; `shared` holds a word for each local expert.
__device__ inline void receive_by_rank(const SlottedDispatchParams &p, const OperationState &op, u32 blocks, u32 *shared) {
    Team t = whole_block();
    t.blocks = blocks;
    u64 base = own_base(p.comm);
    if (p.flags & (COPY_OUT | COPY_SCALES)) copy_slotted_rows(p, t);
    copy_slabs(p, p.out_ids, base + p.side_ids, p.num_topk, FULL, t);
    copy_slabs(p, p.out_weights, base + p.side_weights, p.num_topk, 0, t);
    copy_slots(p, t);
    if (blockIdx.x != 0) return;
    if (p.out_rows < p.max_tokens)
        count_present_experts(p, shared);
    else
        write_expert_counts(p, t);
    if (t.warp() == 0) {
        SlotTotals totals;
        totals.sent = totals.needed = write_rank_counts(p, (u32)p.out_rows, totals.present);
        tell_totals(p, op, totals);
    }
}

// A dispatch that ends unsatisfied still leaves counts of zero and no ids. All threads of every block.
__device__ inline void write_no_slots(const SlottedDispatchParams &p, bool by_expert) {
    Team t = whole_block();
    u64 rows = p.out_rows * (by_expert ? p.local_experts : p.comm.ranks), ids = by_expert ? rows : rows * p.num_topk;
    fill_words(p.out_ids, 0, ids, FULL, t);
    fill_words(p.out_weights, 0, ids, 0, t);
    fill_words(p.out_source, 0, rows * 2, FULL, t);
    if (t.block != 0) return;
    for (u32 i = t.index; by_expert && i < p.local_experts * p.comm.ranks * 2; i += t.threads) at<u32>(p.out_source_ranges)[i] = 0;
    for (u32 i = t.index; i < p.comm.ranks; i += t.threads) at<u32>(p.out_rank_counts)[i] = at<u32>(p.recv_counts)[i] = 0;
    for (u32 i = t.index; i < p.local_experts; i += t.threads) at<u32>(p.out_expert_counts)[i] = at<u32>(p.told_counts)[i] = 0;
    if (t.index < 2) at<i64>(p.out_true_rows)[t.index] = 0;
    HandleRecord *record = at<HandleRecord>(p.record);
    if (t.index == 0) record->rows = record->expert_rows = 0;
    __syncthreads();
    if (t.index != 0) return;
    __threadfence();
    record->told = p.comm.launch;
}

} // namespace ep
