// The FP8 cast of one row in shared memory, from any float type.
#pragma once
#include "cast_block.cuh"
#include "sum.cuh"

namespace ep {

// What is cast: rows of `hidden` elements of type `from`; scales of type `scale_type`, scale_stride bytes a row.
struct Cast {
    u32 hidden, from, scale_type, scale_stride;
};

// Eight elements, from `element` on, of a row whose 16 bytes hold Row::COUNT.
template <class Row> __device__ __forceinline__ void load_eight(const char *row, u32 element, float (&x)[8]) {
#pragma unroll
    for (u32 first = 0; first < 8; first += Row::COUNT) {
        float part[Row::COUNT];
        Row::unpack(*reinterpret_cast<const uint4 *>(row + (element + first) / Row::COUNT * 16), part);
#pragma unroll
        for (u32 i = 0; i < Row::COUNT; i++) x[first + i] = part[i];
    }
}

template <class Row> __device__ __forceinline__ void cast_row_of(const Cast &c, const char *from, char *to, char *scales) {
    u32 blocks = div_up(c.hidden, CAST_BLOCK);
    for (u32 pair = 0; pair < blocks; pair += 2) {
        u32 block = pair + lane_id() / CAST_LANES, element = block * CAST_BLOCK + lane_id() % CAST_LANES * 8;
        bool present = element < c.hidden;
        float x[8] = {};
        if (present) load_eight<Row>(from, element, x);
        BlockScale b = scale_of_lanes(x, c.scale_type);
        if (present) *reinterpret_cast<uint2 *>(to + element) = cast_eight(x, b);
        if (lane_id() % CAST_LANES != 0 || block >= blocks) continue;
        if (c.scale_type == SCALE_UE8M0)
            reinterpret_cast<u8 *>(scales)[block] = (u8)b.exponent;
        else
            reinterpret_cast<float *>(scales)[block] = b.scale;
    }
}

// Casts the row at `from` to `to` and writes its scales, padded with zeros. One warp; all at multiples of 16.
__device__ inline void cast_row(const Cast &c, const char *from, char *to, char *scales) {
    for (u32 i = lane_id(); i < c.scale_stride / 4; i += WARP) reinterpret_cast<u32 *>(scales)[i] = 0;
    __syncwarp();
    if (c.from == FP32)
        cast_row_of<RowFp32>(c, from, to, scales);
    else if (c.from == FP16)
        cast_row_of<RowFp16>(c, from, to, scales);
    else
        cast_row_of<RowBf16>(c, from, to, scales);
}

} // namespace ep
