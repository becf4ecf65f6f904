// Slotted dispatch: rows from the caller's memory to the windows of their ranks, cast on the way, in registers.
#pragma once
#include "cast.cuh"
#include "slotted_route.cuh"

namespace ep {

constexpr u32 PIECE_BYTES = 1024;       // of a row of the input: what a warp takes at once
constexpr u32 PIECE_LOADS = PIECE_BYTES / (WARP * 16);

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
    bool pairs;              // FP32 that is cast
};

// One of them, and the way to the warp's next. No division: the host knows how far that is.
struct RowPiece {
    u32 token, piece;

    __device__ __forceinline__ u32 offset() const { return piece * PIECE_BYTES; }
    __device__ __forceinline__ RowPiece next(const SlottedDispatchParams &p, const RowDeal &deal) const {
        RowPiece r = {token + p.deal_tokens * deal.own.step, piece + p.deal_pieces};
        if (r.piece >= deal.pieces) r = {r.token + deal.own.step, r.piece - deal.pieces};
        return r;
    }
};

__device__ __forceinline__ RowPiece first_piece(const RowDeal &deal) {
    RowPiece r = {deal.own.first, warp_id()};
    for (; r.piece >= deal.pieces; r.piece -= deal.pieces) r.token += deal.own.step;
    return r;
}

// Where load `j` of a lane lies in a piece. FP32 that is cast: a lane's eight elements side by side.
__device__ __forceinline__ u32 lane_bytes(bool pairs, u32 j) { return pairs ? (lane_id() * PIECE_LOADS + j) * 16 : (j * WARP + lane_id()) * 16; }

__device__ __forceinline__ Piece16 load_piece(const SlottedDispatchParams &p, const RowDeal &deal, RowPiece piece) {
    Piece16 r;
    const char *from = at<const char>(p.given.x + (u64)piece.token * p.given.x_stride);
#pragma unroll
    for (u32 j = 0; j < PIECE_LOADS; j++) {
        u32 at_byte = piece.offset() + lane_bytes(deal.pairs, j);
        r.v[j] = piece.token < deal.own.end && at_byte < deal.row_bytes ? ptx::load_row16(from + at_byte) : make_uint4(0, 0, 0, 0);
    }
    return r;
}

// One piece after the cast.
struct CastPiece {
    uint2 codes[PIECE_LOADS]; // of 8 elements each; FP32: the first only
    u32 first, eights;       // first element of the piece, 256 elements for each of `eights`
    uint4 scales;            // as the window holds them, in every lane: two or four
};

template <class Row> __device__ __forceinline__ CastPiece cast_piece_of(const SlottedDispatchParams &p, const Piece16 &raw, u32 offset) {
    constexpr u32 LOADS = 8 / Row::COUNT, EIGHTS = PIECE_LOADS / LOADS;
    CastPiece r = {};
    r.first = offset / 16 * Row::COUNT;
    r.eights = EIGHTS;
    u32 words[4] = {0, 0, 0, 0}, blocks = div_up(p.hidden, CAST_BLOCK);
#pragma unroll
    for (u32 e = 0; e < EIGHTS; e++) {
        float x[8];
#pragma unroll
        for (u32 l = 0; l < LOADS; l++) {
            float part[Row::COUNT];
            Row::unpack(raw.v[e * LOADS + l], part);
#pragma unroll
            for (u32 i = 0; i < Row::COUNT; i++) x[l * Row::COUNT + i] = part[i];
        }
        BlockScale scale = scale_of_lanes(x, p.wire_scale_type);
        r.codes[e] = cast_eight(x, scale);
        bool present = r.first / CAST_BLOCK + e * 2 + lane_id() / CAST_LANES < blocks;
        u32 bits = !present ? 0 : p.wire_scale_type == SCALE_UE8M0 ? scale.exponent : __float_as_uint(scale.scale);
        words[2 * e] = __shfl_sync(FULL, bits, 0);
        words[2 * e + 1] = __shfl_sync(FULL, bits, CAST_LANES);
    }
    r.scales = make_uint4(words[0], words[1], words[2], words[3]);
    return r;
}

__device__ __forceinline__ CastPiece cast_piece(const SlottedDispatchParams &p, const Piece16 &raw, u32 offset) {
    if (p.x_dtype == FP32) return cast_piece_of<RowFp32>(p, raw, offset);
    if (p.x_dtype == FP16) return cast_piece_of<RowFp16>(p, raw, offset);
    return cast_piece_of<RowBf16>(p, raw, offset);
}

// A piece's scales to the row of scales at `to`; the last piece pads it with zeros. One lane.
__device__ __forceinline__ void store_piece_scales(const SlottedDispatchParams &p, const CastPiece &piece, u64 to) {
    bool packed = p.wire_scale_type == SCALE_UE8M0;
    u32 block = piece.first / CAST_BLOCK, blocks = piece.eights * 2, end = (block + blocks) * (packed ? 1 : 4);
    const uint4 &s = piece.scales;
    if (!packed && blocks == 4)
        ptx::store_row16(at<char>(to + block * 4), s);
    else if (!packed)
        ptx::store_row8(at<char>(to + block * 4), make_uint2(s.x, s.y));
    else if (blocks == 4)
        *at<u32>(to + block) = s.x | s.y << 8 | s.z << 16 | s.w << 24;
    else
        *at<u16>(to + block) = (u16)(s.x | s.y << 8);
    if (piece.first + piece.eights * 2 * CAST_BLOCK >= p.hidden)
        for (u32 i = end; i < p.scale_stride; i += 2) *at<u16>(to + i) = 0;
}

// Row of the window at `rank` for the chunk's `token`-th token.
__device__ __forceinline__ u64 window_row(const SlottedDispatchParams &p, const Routing &r, u32 rank, u32 token) {
    return (u64)p.comm.rank * p.max_tokens + tokens_below(r, rank, token);
}

// A piece as it will cross.
template <bool CAST> struct ReadyPiece {
    Piece16 raw;
    __device__ __forceinline__ void make(const SlottedDispatchParams &, const Piece16 &given, u32) { raw = given; }
};
template <> struct ReadyPiece<true> {
    CastPiece cast;
    __device__ __forceinline__ void make(const SlottedDispatchParams &p, const Piece16 &given, u32 offset) { cast = cast_piece(p, given, offset); }
};

// Sends one piece of the chunk's `token`-th token to all its ranks. One warp.
template <bool CAST> __device__ __forceinline__ void send_piece(const SlottedDispatchParams &p, const Routing &r, const ReadyPiece<CAST> &piece, u32 token, u32 offset) {
    for (u32 base = 0; base < p.comm.ranks; base += WARP) {
        u32 rank = base + lane_id();
        bool goes = rank < p.comm.ranks && goes_to(r, rank, token);
        u64 target = 0;
        if (goes) {
            u64 row = window_row(p, r, rank, token), window = r.bases[rank];
            target = window + p.rows + row * p.row_bytes;
            if constexpr (CAST) store_piece_scales(p, piece.cast, window + p.scales + row * p.scale_stride);
        }
        for (u32 mask = __ballot_sync(FULL, goes); mask; mask &= mask - 1) {
            u64 to = __shfl_sync(FULL, target, __ffs((i32)mask) - 1);
#pragma unroll
            for (u32 j = 0; j < PIECE_LOADS; j++) {
                if constexpr (CAST) {
                    u32 element = piece.cast.first + (j * WARP + lane_id()) * 8;
                    if (j < piece.cast.eights && element < p.hidden) ptx::store_row8(at<char>(to + element), piece.cast.codes[j]);
                } else {
                    u32 at_byte = offset + lane_bytes(false, j);
                    if (at_byte < p.row_bytes) ptx::store_row16(at<char>(to + at_byte), piece.raw.v[j]);
                }
            }
        }
    }
}

} // namespace ep
