// Where things lie in a rank's symmetric memory.
#pragma once
#include "params.cuh"
#include "state.cuh"

namespace ep {

constexpr u64 WORD_BYTES = 64;

__device__ __forceinline__ u64 peer_base(const CommParams &c, u32 rank) {
    return rank < NEAR_BASES ? c.near_bases[rank] : __ldg(at<const u64>(c.peer_bases) + rank);
}

__device__ __forceinline__ u64 own_base(const CommParams &c) { return c.own; }

__device__ __forceinline__ bool is_alive(const CommParams &c, u32 rank) { return __ldg(at<const u8>(c.alive) + rank) != 0; }

// Which word of a phase signal `number` takes. There are two, unless operations overlap: no division then.
EP_SELDOM u32 turn_of_many(u64 number, u32 turns) { return (u32)(number % turns); }
__device__ __forceinline__ u32 turn_of(const CommParams &c, u64 number) { return c.turns == 2 ? (u32)number & 1 : turn_of_many(number, c.turns); }

// The word in which `holder` sees the signals of `source`.
__device__ __forceinline__ u64 *signal_word(const CommParams &c, u32 holder, u32 phase, u32 source, u64 number) {
    u64 index = (u64)(phase * c.ranks + source) * c.turns + turn_of(c, number);
    return at<u64>(peer_base(c, holder) + c.signals + index * WORD_BYTES);
}

__device__ __forceinline__ u64 *verdict_word(const CommParams &c, u32 holder, u32 source) {
    return at<u64>(peer_base(c, holder) + c.verdicts + (u64)source * WORD_BYTES);
}

__device__ __forceinline__ u64 *verdict_mask(const CommParams &c, u32 holder, u32 source) {
    return at<u64>(peer_base(c, holder) + c.verdict_masks) + (u64)source * div_up(c.ranks, 64);
}

__device__ __forceinline__ u64 signal_value(const CommParams &c, u64 epoch) { return epoch << 16 | c.fingerprint; }

// Rank and local number of an expert.
struct Home {
    u32 rank, local;
};
__device__ __forceinline__ Home expert_home(u64 table, i32 expert) {
    u32 v = __ldg(at<const u32>(table) + expert);
    return {v >> 16, v & 0xffff};
}

} // namespace ep
