// Sums of rows that pass through shared memory. Registers of all warps together hold too little for the time that memory
// takes; here a warp's bulk loads run ahead of what it adds up, also into the rows of its next sum.
#pragma once
#include "ring.cuh"
#include "sum.cuh"

namespace ep {

constexpr u32 SLOT = 2048;   // bytes of a row that are added at once
constexpr u32 SLOT_UNITS = SLOT / UNIT;

// One warp's slots, filled and emptied in a circle.
struct Slots {
    char *bytes;             // [count][SLOT]
    u64 *full;               // [count] mbarriers
    u32 count;
    u32 filling, emptying;   // which is next
    u32 held;                // filled and not emptied yet
    u32 parity;              // of the one that is emptied next

    __device__ __forceinline__ u32 after(u32 slot) const { return slot + 1 == count ? 0 : slot + 1; }

    __device__ __forceinline__ void fill(const char *from, u32 size) {
        if (lane_id() == 0) start_load(full + filling, bytes + filling * SLOT, {from, size});
        filling = after(filling);
        held++;
    }

    // 16 bytes per lane and unit of the oldest slot. It may be filled again behind emptied().
    __device__ __forceinline__ const char *oldest() const {
        wait_load(full + emptying, parity);
        return bytes + emptying * SLOT + lane_id() * 16;
    }
    __device__ __forceinline__ void emptied() {
        __syncwarp();
        emptying = after(emptying);
        if (emptying == 0) parity ^= 1;
        held--;
    }
};

__device__ __forceinline__ u32 slots_bytes(u32 count, u32 warps) { return warps * count * (SLOT + 8); }

// Before a block barrier. Of warp `warp`; all slots of the block's warps lie before their barriers.
__device__ __forceinline__ Slots make_slots(char *shared, u32 count, u32 warp, u32 warps) {
    Slots s = {shared + warp * count * SLOT, reinterpret_cast<u64 *>(shared + warps * count * SLOT) + warp * count, count, 0, 0, 0, 0};
    if (lane_id() == 0) init_ring({s.bytes, s.full, SLOT, count, 0});
    return s;
}

// What makes one row. The first `inner` rows are this rank's: their sum is rounded by itself and then added before row
// `inner_at`, or behind the last; FULL: there is none.
struct Gather {
    u64 number;              // of the row that they make
    Terms rows;
    u32 inner, inner_at;
};

// Sums row after row, as `feed` names them:
//   take(gather)            the next row, or false
//   is_here()               whether the rows of the gather last taken can be read; does not wait
//   wait()                  until they can; false: the operation has failed
//   start(number, place, sum), finish(number, place, v): one place of a row; end_row(number): behind its last
template <class Row, class Feed> struct RowSums {
    Slots &slots;
    Feed &feed;
    u32 row_bytes;
    Gather now, next;
    bool more, here;         // a next row is known; its rows can be read
    bool ahead;              // what is loaded next belongs to it
    u32 offset, term;        // ... and is this part of this row

    // False: nothing can be loaded now.
    __device__ __forceinline__ bool load() {
        u32 count = ahead ? next.rows.count : now.rows.count;
        if (term == count) {
            term = 0;
            offset += SLOT;
        }
        if (count == 0 || offset >= row_bytes) {
            if (ahead || !here) return false;
            ahead = true;
            offset = term = 0;
            if (next.rows.count == 0) return false;
        }
        u64 row = __shfl_sync(FULL, ahead ? next.rows.row : now.rows.row, term);
        slots.fill(at<const char>(row) + offset, min(SLOT, row_bytes - offset));
        term++;
        return true;
    }

    __device__ __forceinline__ void fill() {
        while (slots.held < slots.count && load()) {
        }
    }

    __device__ __forceinline__ void add_term(u32 j, Sum<Row> (&sum)[SLOT_UNITS]) {
        fill();
        float weight = term_weight(now.rows, j);
        const char *from = slots.oldest();
#pragma unroll
        for (u32 u = 0; u < SLOT_UNITS; u++) sum[u].add_weighted(*reinterpret_cast<const uint4 *>(from + u * UNIT), weight);
        slots.emptied();
    }

    __device__ __forceinline__ void sum_piece(u32 begin) {
        u32 place = begin + lane_id() * 16;
        Sum<Row> sum[SLOT_UNITS];
        uint4 inner[SLOT_UNITS];
#pragma unroll
        for (u32 u = 0; u < SLOT_UNITS; u++) sum[u].clear();
        for (u32 j = 0;; j++) {
            if (j == now.inner) {
#pragma unroll
                for (u32 u = 0; u < SLOT_UNITS; u++) {
                    inner[u] = sum[u].rounded();
                    sum[u].clear();
                    if (place + u * UNIT < row_bytes) feed.start(now.number, place + u * UNIT, sum[u]);
                }
            }
            if (j == now.inner_at) {
#pragma unroll
                for (u32 u = 0; u < SLOT_UNITS; u++) sum[u].add(inner[u]);
            }
            if (j == now.rows.count) break;
            add_term(j, sum);
        }
#pragma unroll
        for (u32 u = 0; u < SLOT_UNITS; u++)
            if (place + u * UNIT < row_bytes) feed.finish(now.number, place + u * UNIT, sum[u].rounded());
    }

    // False: a wait has failed. Nothing is on its way then.
    __device__ __forceinline__ bool all() {
        more = feed.take(next);
        here = false;
        while (more) {
            if (!here && !feed.wait()) return false;
            now = next;
            if (!ahead) offset = term = 0;
            ahead = false;
            more = feed.take(next);
            here = more && feed.is_here();
            for (u32 begin = 0; begin < row_bytes; begin += SLOT) {
                if (more && !here) here = feed.is_here();
                sum_piece(begin);
            }
            feed.end_row(now.number);
        }
        return true;
    }
};

template <class Row, class Feed> __device__ __forceinline__ bool sum_rows(Slots &slots, Feed &feed, u32 row_bytes) {
    RowSums<Row, Feed> sums = {slots, feed, row_bytes, {}, {}, false, false, false, 0, 0};
    return sums.all();
}

} // namespace ep
