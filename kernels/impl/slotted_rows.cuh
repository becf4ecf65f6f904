// Slotted dispatch: rows from the caller's memory to the windows of their ranks, cast on the way, in registers.
#pragma once
#include "cast_block.cuh"
#include "slotted_route.cuh"

namespace ep {

constexpr u32 PIECE_BYTES = 1024;       // of a row of the input: what a warp takes at once
constexpr u32 PIECE_LOADS = PIECE_BYTES / (WARP * 16);
constexpr u32 PIECE_BLOCKS = PIECE_BYTES / 2 / CAST_BLOCK; // scales of a piece of BF16

// The tokens that this block sends: every `step`-th from `first`.
struct OwnTokens {
    u32 first, step, end;

    __device__ __forceinline__ u32 token(u32 j) const { return first + j * step; }
    // How many of them lie below `token`.
    __device__ __forceinline__ u32 below(u32 token) const { return token <= first ? 0 : div_up(min(token, end) - min(first, end), step); }
};

struct Piece16 {
    uint4 v[PIECE_LOADS];
};

// Pieces of own tokens, dealt to the row warps of the block.
struct RowDeal {
    OwnTokens own;
    u32 pieces, warps, row_bytes; // of the input

    __device__ __forceinline__ u32 token(u32 unit) const { return own.token(unit / pieces); }
    __device__ __forceinline__ u32 offset(u32 unit) const { return unit % pieces * PIECE_BYTES; }
};

__device__ __forceinline__ Piece16 load_piece(const SlottedDispatchParams &p, const RowDeal &deal, u32 unit) {
    Piece16 r;
    u32 token = deal.token(unit), offset = deal.offset(unit) + lane_id() * 16;
    const char *from = at<const char>(p.x + (u64)token * p.x_stride);
#pragma unroll
    for (u32 j = 0; j < PIECE_LOADS; j++, offset += WARP * 16)
        r.v[j] = token < deal.own.end && offset < deal.row_bytes ? ptx::load_row16(from + offset) : make_uint4(0, 0, 0, 0);
    return r;
}

// One piece after the cast: codes, and four scales that every lane holds.
struct CastPiece {
    uint2 codes[PIECE_LOADS];
    uint4 scales;            // as the window holds them; UE8M0: packed in x
};

__device__ __forceinline__ CastPiece cast_piece(const SlottedDispatchParams &p, const Piece16 &raw, u32 first_block) {
    CastPiece r;
    u32 bits[PIECE_LOADS];
#pragma unroll
    for (u32 j = 0; j < PIECE_LOADS; j++) {
        float x[8];
        unpack_bf16(raw.v[j], x);
        BlockScale scale = scale_of_lanes(x, p.wire_scale_type);
        r.codes[j] = cast_eight(x, scale);
        bool present = first_block + j * 2 + lane_id() / CAST_LANES < div_up(p.hidden, CAST_BLOCK);
        bits[j] = !present ? 0 : p.wire_scale_type == SCALE_UE8M0 ? scale.exponent : __float_as_uint(scale.scale);
    }
    static_assert(PIECE_BLOCKS == 4 && PIECE_LOADS == 2, "a piece has the scales of 16 bytes");
    r.scales = make_uint4(__shfl_sync(FULL, bits[0], 0), __shfl_sync(FULL, bits[0], CAST_LANES), __shfl_sync(FULL, bits[1], 0),
                          __shfl_sync(FULL, bits[1], CAST_LANES));
    if (p.wire_scale_type == SCALE_UE8M0) r.scales.x |= r.scales.y << 8 | r.scales.z << 16 | r.scales.w << 24;
    return r;
}

// A piece's scales to the row of scales at `to`; the last piece pads it with zeros. One lane.
__device__ __forceinline__ void store_piece_scales(const SlottedDispatchParams &p, const CastPiece &piece, u32 number, u64 to) {
    if (p.wire_scale_type != SCALE_UE8M0) return ptx::store_row16(at<char>(to + number * 16), piece.scales);
    at<u32>(to)[number] = piece.scales.x;
    if ((number + 1) * PIECE_BLOCKS * CAST_BLOCK >= p.hidden)
        for (u32 i = number + 1; i < p.scale_stride / 4; i++) at<u32>(to)[i] = 0;
}

// Row of the window at `rank` for the chunk's `token`-th token.
__device__ __forceinline__ u64 window_row(const SlottedDispatchParams &p, const Routing &r, u32 rank, u32 token) {
    return (u64)p.comm.rank * p.max_tokens + tokens_below(r, rank, token);
}

// Sends one piece of the chunk's `token`-th token to all its ranks. One warp.
template <bool CAST> __device__ __forceinline__ void send_piece(const SlottedDispatchParams &p, const Routing &r, const Piece16 &raw, u32 token, u32 offset) {
    CastPiece cast;
    u32 number = offset / PIECE_BYTES;
    if constexpr (CAST) cast = cast_piece(p, raw, number * PIECE_BLOCKS);
    for (u32 base = 0; base < p.comm.ranks; base += WARP) {
        u32 rank = base + lane_id();
        bool goes = rank < p.comm.ranks && goes_to(r, rank, token);
        u64 target = 0;
        if (goes) {
            u64 row = window_row(p, r, rank, token), window = peer_base(p.comm, rank);
            target = window + p.rows + row * p.row_bytes;
            if (CAST) store_piece_scales(p, cast, number, window + p.scales + row * p.scale_stride);
        }
        for (u32 mask = __ballot_sync(FULL, goes); mask; mask &= mask - 1) {
            u64 to = __shfl_sync(FULL, target, __ffs((i32)mask) - 1);
#pragma unroll
            for (u32 j = 0; j < PIECE_LOADS; j++) {
                u32 at_byte = offset + (j * WARP + lane_id()) * 16; // of the input
                if constexpr (CAST) {
                    if (at_byte / 2 < p.row_bytes) ptx::store_row8(at<char>(to + at_byte / 2), cast.codes[j]);
                } else {
                    if (at_byte < p.row_bytes) ptx::store_row16(at<char>(to + at_byte), raw.v[j]);
                }
            }
        }
    }
}

} // namespace ep
