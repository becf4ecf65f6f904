// Sums of rows: FP32, in a fixed order, rounded once.
#pragma once
#include "../ptx/convert.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/special.cuh"

namespace ep {

// 16 bytes of a row as floats and back. NEUTRAL is -0: adding it, or its product with 1, changes no sum.
struct RowBf16 {
    static constexpr u32 COUNT = 8, NEUTRAL = 0x80008000;
    static __device__ __forceinline__ void unpack(uint4 v, float (&f)[8]) {
        u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            f[2 * i] = __uint_as_float(w[i] << 16);
            f[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    }
    static __device__ __forceinline__ uint4 pack(const float (&f)[8]) {
        return make_uint4(ptx::bf16x2_from_f32(f[0], f[1]), ptx::bf16x2_from_f32(f[2], f[3]), ptx::bf16x2_from_f32(f[4], f[5]), ptx::bf16x2_from_f32(f[6], f[7]));
    }
};

struct RowFp16 {
    static constexpr u32 COUNT = 8, NEUTRAL = 0x80008000;
    static __device__ __forceinline__ void unpack(uint4 v, float (&f)[8]) {
        u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            f[2 * i] = ptx::f32_from_f16((u16)w[i]);
            f[2 * i + 1] = ptx::f32_from_f16((u16)(w[i] >> 16));
        }
    }
    static __device__ __forceinline__ uint4 pack(const float (&f)[8]) {
        return make_uint4(ptx::f16x2_from_f32(f[0], f[1]), ptx::f16x2_from_f32(f[2], f[3]), ptx::f16x2_from_f32(f[4], f[5]), ptx::f16x2_from_f32(f[6], f[7]));
    }
};

struct RowFp32 {
    static constexpr u32 COUNT = 4, NEUTRAL = 0x80000000;
    static __device__ __forceinline__ void unpack(uint4 v, float (&f)[4]) {
        f[0] = __uint_as_float(v.x);
        f[1] = __uint_as_float(v.y);
        f[2] = __uint_as_float(v.z);
        f[3] = __uint_as_float(v.w);
    }
    static __device__ __forceinline__ u32 canonical(float f) { return f != f ? 0x7fffffffu : __float_as_uint(f); }
    static __device__ __forceinline__ uint4 pack(const float (&f)[4]) { return make_uint4(canonical(f[0]), canonical(f[1]), canonical(f[2]), canonical(f[3])); }
};

template <class Row> __device__ __forceinline__ uint4 neutral() { return make_uint4(Row::NEUTRAL, Row::NEUTRAL, Row::NEUTRAL, Row::NEUTRAL); }

// 16 bytes of a row, or what does not count where there is none.
template <class Row> __device__ __forceinline__ uint4 load_term(bool present, const char *p) { return present ? ptx::load_row16(p) : neutral<Row>(); }

template <class Row> struct Sum {
    float f[Row::COUNT];

    __device__ __forceinline__ void fill(float value) {
#pragma unroll
        for (u32 i = 0; i < Row::COUNT; i++) f[i] = value;
    }
    __device__ __forceinline__ void clear() { fill(0.0f); }
    __device__ __forceinline__ void add(uint4 v) {
        float x[Row::COUNT];
        Row::unpack(v, x);
#pragma unroll
        for (u32 i = 0; i < Row::COUNT; i++) f[i] = __fadd_rn(f[i], x[i]);
    }
    __device__ __forceinline__ void add_weighted(uint4 v, float weight) {
        float x[Row::COUNT];
        Row::unpack(v, x);
#pragma unroll
        for (u32 i = 0; i < Row::COUNT; i++) f[i] = __fmaf_rn(weight, x[i], f[i]);
    }
    template <bool WEIGHTED> __device__ __forceinline__ void add_term(uint4 v, float weight) {
        if (WEIGHTED)
            add_weighted(v, weight);
        else
            add(v);
    }
    __device__ __forceinline__ uint4 rounded() const { return Row::pack(f); }
};

// Rows that enter one sum, in order: lane i < count holds the i-th; the other lanes hold weight 1.
struct Terms {
    u32 count;
    u64 row;                 // address
    float weight;
};

// The j-th of them, in all lanes.
__device__ __forceinline__ u64 term_row(const Terms &t, u32 j) { return __shfl_sync(FULL, t.row, j); }
__device__ __forceinline__ float term_weight(const Terms &t, u32 j) { return __shfl_sync(FULL, t.weight, j); }

// Orders the lanes that have a term by key (lane number in the low five bits, unique) and gathers them in front.
__device__ __forceinline__ Terms make_terms(bool has, u32 key, u64 row, float weight) {
    Terms t = {(u32)__popc(__ballot_sync(FULL, has)), 0, 0.0f};
    u32 from = 0;
    for (u32 j = 0; j < t.count; j++) {
        u32 least = ptx::warp_min(has ? key : FULL);
        if (lane_id() == (least & 31)) has = false;
        if (lane_id() == j) from = least & 31;
    }
    t.row = __shfl_sync(FULL, row, from);
    float mine = __shfl_sync(FULL, weight, from);
    t.weight = lane_id() < t.count ? mine : 1.0f;
    return t;
}

constexpr u32 UNIT = WARP * 16; // what a warp takes with one access of each lane

// Rows `first` and on of a sum, UNITS times 512 bytes of each from `place` on, below `end`: on their way.
template <class Row, u32 TERMS, u32 UNITS>
__device__ __forceinline__ void fetch_terms(const Terms &t, u32 first, u32 place, u32 end, uint4 (&v)[TERMS][UNITS]) {
#pragma unroll
    for (u32 j = 0; j < TERMS; j++) {
        const char *row = at<const char>(term_row(t, (first + j) & 31)) + place;
#pragma unroll
        for (u32 u = 0; u < UNITS; u++) v[j][u] = load_term<Row>(first + j < t.count && place + u * UNIT < end, row + u * UNIT);
    }
}

// The rounded sum of rows of which the first TERMS were fetched.
template <class Row, bool WEIGHTED, u32 TERMS, u32 UNITS>
__device__ __forceinline__ void sum_fetched(const Terms &t, uint4 (&v)[TERMS][UNITS], u32 place, u32 end, uint4 (&out)[UNITS]) {
    Sum<Row> sum[UNITS];
#pragma unroll
    for (u32 u = 0; u < UNITS; u++) sum[u].clear();
    for (u32 first = 0; first < t.count; first += TERMS) {
        if (first) fetch_terms<Row>(t, first, place, end, v);
#pragma unroll
        for (u32 j = 0; j < TERMS; j++) {
            float weight = WEIGHTED ? term_weight(t, (first + j) & 31) : 0.0f;
#pragma unroll
            for (u32 u = 0; u < UNITS; u++) sum[u].template add_term<WEIGHTED>(v[j][u], weight);
        }
    }
#pragma unroll
    for (u32 u = 0; u < UNITS; u++) out[u] = sum[u].rounded();
}

template <class Row, u32 TERMS, u32 UNITS>
__device__ __forceinline__ void sum_fetched(bool weighted, const Terms &t, uint4 (&v)[TERMS][UNITS], u32 place, u32 end, uint4 (&out)[UNITS]) {
    if (weighted)
        sum_fetched<Row, true>(t, v, place, end, out);
    else
        sum_fetched<Row, false>(t, v, place, end, out);
}

} // namespace ep
