// What a receive writes beside the rows: counts, offsets, ids, weights and sources.
#pragma once
#include "exchange.cuh"
#include "traffic.cuh"

namespace ep {

// Some threads that share a barrier: a whole block or the side warps of one.
struct Team {
    u32 index, threads;      // this thread in the team of this block
    u32 barrier;             // its barrier number
    u32 block, blocks;
    __device__ __forceinline__ void sync() const { ptx::barrier_sync(barrier, threads); }
    __device__ __forceinline__ u32 warp() const { return index / WARP; }
    __device__ __forceinline__ u32 warps() const { return threads / WARP; }
};

__device__ __forceinline__ Team whole_block() { return {threadIdx.x, blockDim.x, 0, blockIdx.x, gridDim.x}; }

// The handle keeps the matrix: receives, combines and cached dispatches need it when the region has moved on.
__device__ inline void keep_counts(const DispatchParams &p, u64 exchange, const Team &t) {
    const i32 *matrix = count_row(p, p.comm.rank, exchange, 0);
    u32 columns = count_columns(p), words = p.comm.ranks * columns;
    for (u32 i = t.block * t.threads + t.index; i < words; i += t.blocks * t.threads)
        at<i32>(p.counts)[i] = is_alive(p.comm, i / columns) ? matrix[i] : 0;
}

// Sizes of what has been received, the same in every block that computes them from the counts.
struct Received {
    u64 rows, true_rows;     // on the link: that fit, that were sent
    u64 handed;              // by rank: those of them that fit in the output
    u64 expert_rows, true_expert_rows; // end of the last aligned expert: present, needed
    bool drops_places;       // by expert: some expert rows do not fit in the output
};

// Rows per source, from the counts `matrix` (the exchange's or the handle's); dead ranks sent nothing. One warp.
__device__ inline Received sum_received(const DispatchParams &p, const i32 *matrix) {
    u32 columns = count_columns(p);
    i32 rows = 0;
    for (u32 s = lane_id(); s < p.comm.ranks; s += WARP) rows += is_alive(p.comm, s) ? matrix[(u64)s * columns + p.comm.rank] : 0;
    Received r = {};
    r.true_rows = (u32)ptx::warp_sum(rows);
    r.rows = min(r.true_rows, p.max_recv_rows);
    r.handed = min(r.rows, p.out.rows);
    if (p.flags & LINK_MAY_OVERFLOW) r.true_rows = max(r.true_rows, at<const HandleRecord>(p.record)->sent_rows);
    return r;
}

// What all ranks together send to a local expert; 0 beyond the last.
__device__ __forceinline__ i32 rows_of_local(const DispatchParams &p, const i32 *matrix, u32 local) {
    if (local >= p.local_experts) return 0;
    u32 first = __ldg(at<const u32>(p.rank_first) + p.comm.rank), expert = __ldg(at<const u32>(p.expert_order) + first + local);
    i32 count = 0;
    for (u32 s = 0; s < p.comm.ranks; s++) count += is_alive(p.comm, s) ? matrix[(u64)s * count_columns(p) + p.comm.ranks + expert] : 0;
    return count;
}

// Expert counts and offsets, clamped to the capacity, and the totals in r. One warp; by rank offsets are not aligned.
__device__ inline void sum_experts(const DispatchParams &p, const i32 *matrix, Received &r, bool by_expert, bool write) {
    u64 carried = 0, limit = by_expert ? p.out.rows : ~0ull;
    bool drops = false;
    for (u32 base = 0; base < p.local_experts; base += WARP) {
        u32 l = base + lane_id();
        i32 count = rows_of_local(p, matrix, l);
        i32 size = (i32)round_up((u32)count, p.alignment), sum = sum_to_lane(size);
        u64 start = carried + (u32)(sum - size), present = start >= limit ? 0 : min((u64)(u32)count, limit - start);
        drops = drops || present < (u32)count;
        if (write && l < p.local_experts) {
            at<i32>(p.out.expert_counts)[l] = (i32)present;
            if (by_expert) at<i64>(p.out.expert_offsets)[l] = (i64)min(start, limit);
            if (p.host_counts) at<i64>(p.host_counts)[3 + l] = (i64)present;
            *expert_counter(p.comm, l) += present;
        }
        carried += (u32)__shfl_sync(FULL, sum, WARP - 1);
    }
    r.drops_places = __any_sync(FULL, drops);
    r.true_expert_rows = carried;
    r.expert_rows = by_expert ? min(carried, limit) : 0;
    if (p.flags & LINK_MAY_OVERFLOW) r.true_expert_rows = max(carried, at<const HandleRecord>(p.record)->sent_expert_rows);
}

// By rank experts' counts are those of the rows handed out: where some are not, they are counted when all are here.
__device__ __forceinline__ bool counts_rows(const Received &r, bool by_expert) { return !by_expert && r.handed < r.true_rows; }

// Counts, offsets and totals: one warp of one block.
__device__ inline void write_counts(const DispatchParams &p, const OperationState &op, const i32 *matrix, bool by_expert) {
    Received r = sum_received(p, matrix);
    sum_experts(p, matrix, r, by_expert, !counts_rows(r, by_expert));
    u32 columns = count_columns(p);
    i64 carried = 0, fit = (i64)(by_expert ? r.rows : r.handed), link = (i64)r.rows;
    for (u32 base = 0; base < p.comm.ranks; base += WARP) {
        u32 s = base + lane_id();
        i32 n = s < p.comm.ranks && is_alive(p.comm, s) ? matrix[(u64)s * columns + p.comm.rank] : 0, sum = sum_to_lane(n);
        i64 start = carried + sum - n;
        if (s < p.comm.ranks) {
            at<i32>(p.out.rank_counts)[s] = (i32)max((i64)0, min((i64)n, fit - start));
            count_received(p.comm, s, (u64)max((i64)0, min((i64)n, link - start)), p.wire_bytes);
        }
        carried += __shfl_sync(FULL, sum, WARP - 1);
    }
    if (lane_id() != 0) return;
    u64 needed = by_expert ? r.true_expert_rows : r.true_rows;
    at<i64>(p.out.true_rows)[0] = (i64)r.true_rows;
    at<i64>(p.out.true_rows)[1] = (i64)needed;
    if (by_expert) at<i64>(p.out.expert_offsets)[p.local_experts] = (i64)r.expert_rows;
    HandleRecord *record = at<HandleRecord>(p.record);
    record->rows = by_expert ? r.rows : r.handed;
    record->link_rows = r.rows;
    record->expert_rows = r.expert_rows;
    record->capacity = p.out.rows;
    if (r.true_rows > r.rows)
        report_soft(p.comm, op, CAPACITY_EXCEEDED, (i64)p.max_recv_rows, (i64)r.true_rows);
    else if (by_expert ? r.drops_places : r.handed < r.rows)
        report_soft(p.comm, op, CAPACITY_EXCEEDED, (i64)p.out.rows, (i64)needed);
}

// Experts' counts of the first `rows` rows in the window, by rank. A team of one block; `shared` has room for a number per
// local expert.
__device__ inline void count_rows(const DispatchParams &p, u64 rows, i32 *shared, const Team &t) {
    const i32 *ids = at<const i32>(own_base(p.comm) + p.side_ids);
    for (u32 l = t.index; l < p.local_experts; l += t.threads) shared[l] = 0;
    t.sync();
    for (u64 i = t.index; i < rows * p.num_topk; i += t.threads)
        if (ids[i] >= 0) atomicAdd(shared + ids[i], 1);
    t.sync();
    for (u32 l = t.index; l < p.local_experts; l += t.threads) {
        at<i32>(p.out.expert_counts)[l] = shared[l];
        if (p.host_counts) at<i64>(p.host_counts)[3 + l] = shared[l];
        *expert_counter(p.comm, l) += (u32)shared[l];
    }
    t.sync();
}

// The host waits for a launch of its own, or for any of a graph: both can be seen in one word. One thread.
__device__ __forceinline__ void publish_counts_word(const DispatchParams &p) {
    HandleRecord *record = at<HandleRecord>(p.record);
    bool captured = p.comm.launch & CAPTURED;
    if (!captured) record->told = p.comm.launch;
    ptx::store_release_sys(at<u64>(p.host_counts), captured ? record->told | CAPTURED : p.comm.launch);
}

// When all counts are written, by a warp of that block, for a host that waits.
__device__ inline void tell_host(const DispatchParams &p) {
    __syncwarp();
    if (!p.host_counts || lane_id() != 0) return;
    const HandleRecord *record = at<const HandleRecord>(p.record);
    at<i64>(p.host_counts)[1] = (i64)record->rows;
    at<i64>(p.host_counts)[2] = (i64)record->expert_rows;
    publish_counts_word(p);
}

// Sets out[begin..end) of 4-byte words, 16 bytes at a time where possible, shared between the team's blocks.
__device__ inline void fill_words(u64 out, u64 begin, u64 end, u32 value, const Team &t) {
    if (begin >= end) return;
    u64 stride = (u64)t.threads * t.blocks, me = (u64)t.block * t.threads + t.index;
    u64 head = min(begin + (4 - (out / 4 + begin) % 4) % 4, end), tail = max(end - (out / 4 + end) % 4, head); // between: whole 16 bytes
    uint4 v = make_uint4(value, value, value, value);
    for (u64 i = head + 4 * me; i < tail; i += 4 * stride) *at<uint4>(out + 4 * i) = v;
    for (u64 i = begin + me; i < head; i += stride) at<u32>(out)[i] = value;
    for (u64 i = tail + me; i < end; i += stride) at<u32>(out)[i] = value;
}

// Ids -1, weights 0 and sources -1 from row `begin` up to the capacity. topk: ids per row of the output.
__device__ inline void fill_past_end(const DispatchParams &p, u64 begin, u32 topk, const Team &t) {
    fill_words(p.out.ids, begin * topk, p.out.rows * topk, FULL, t);
    fill_words(p.out.weights, begin * topk, p.out.rows * topk, 0, t);
    fill_words(p.out.source, begin * 2, p.out.rows * 2, FULL, t);
}

// A dispatch that ends unsatisfied still leaves counts of zero and no ids. All threads of the blocks that call it.
__device__ inline void write_nothing(const DispatchParams &p, bool by_expert, const Team &t) {
    fill_past_end(p, 0, by_expert ? 1 : p.num_topk, t);
    if (t.block != 0) return;
    for (u32 i = t.index; i < p.comm.ranks; i += t.threads) at<i32>(p.out.rank_counts)[i] = 0;
    for (u32 i = t.index; i < p.local_experts; i += t.threads) at<i32>(p.out.expert_counts)[i] = 0;
    if (by_expert)
        for (u32 i = t.index; i <= p.local_experts; i += t.threads) at<i64>(p.out.expert_offsets)[i] = 0;
    if (t.index < 2) at<i64>(p.out.true_rows)[t.index] = 0;
    if (t.index == 0) {
        HandleRecord *record = at<HandleRecord>(p.record);
        record->rows = record->expert_rows = record->link_rows = 0;
        record->capacity = p.out.rows;
        if (p.host_counts) {
            for (u32 i = 1; i < 3 + p.local_experts; i++) at<i64>(p.host_counts)[i] = 0;
            publish_counts_word(p);
        }
    }
}

// Copies 4-byte words from an array at a multiple of 16, shared between the team's blocks; 16 bytes at a time where the
// other array is at one too.
__device__ inline void copy_words(u64 to, u64 from, u64 words, const Team &t) {
    u64 stride = (u64)t.threads * t.blocks, me = (u64)t.block * t.threads + t.index, wide = to % 16 ? 0 : words / 4;
#pragma unroll 4
    for (u64 i = me; i < wide; i += stride) at<uint4>(to)[i] = ptx::load_row16(at<const uint4>(from) + i);
#pragma unroll 4
    for (u64 i = wide * 4 + me; i < words; i += stride) at<u32>(to)[i] = at<const u32>(from)[i];
}

// By rank: side data leaves the window for the outputs.
__device__ inline void receive_side_by_rank(const DispatchParams &p, u64 rows, const Team &t) {
    u64 base = own_base(p.comm), n = min(rows, p.out.rows);
    copy_words(p.out.ids, base + p.side_ids, n * p.num_topk, t);
    copy_words(p.out.weights, base + p.side_weights, n * p.num_topk, t);
    copy_words(p.out.source, base + p.side_source, n * 2, t);
}

} // namespace ep
