// Integer names and the one-line helpers that every layer uses.
#pragma once

namespace ep {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

constexpr u32 WARP = 32;
constexpr u32 FULL = 0xffffffffu;

__device__ __forceinline__ u32 lane_id() { return threadIdx.x & (WARP - 1); }
__device__ __forceinline__ u32 warp_id() { return threadIdx.x / WARP; }

// For what happens seldom: called, so that what happens always is short and its instructions are near.
#define EP_SELDOM static __device__ __noinline__

template <class T> __device__ __forceinline__ T *at(u64 address) { return reinterpret_cast<T *>(address); }

__device__ __forceinline__ u32 div_up(u32 a, u32 b) { return (a + b - 1) / b; }

} // namespace ep
