// Clocks, fences, barriers and warp votes, one instruction each.
#pragma once
#include "base.cuh"

namespace ep::ptx {

__device__ __forceinline__ u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ void sleep(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

// A kernel may take its place on the device ahead of the end of the one before it on its stream: this is until that has ended and
// what it wrote is visible;
__device__ __forceinline__ void await_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// and this is what lets the next one come, once all blocks have said it or have ended.
__device__ __forceinline__ void let_next_kernel_come() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ u32 lanes_below() {
    u32 m;
    asm("mov.u32 %0, %lanemask_lt;" : "=r"(m));
    return m;
}

// Between generic accesses and bulk copies of the same memory.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void fence_acq_rel_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// A barrier of `threads` threads of the block; number 0 is __syncthreads().
__device__ __forceinline__ void barrier_sync(u32 number, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

__device__ __forceinline__ u32 warp_min(u32 v) {
    u32 r;
    asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
    return r;
}

__device__ __forceinline__ u32 warp_max(u32 v) {
    u32 r;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
    return r;
}

__device__ __forceinline__ i32 warp_sum(i32 v) {
    i32 r;
    asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
    return r;
}

__device__ __forceinline__ u32 match_any(u32 v) {
    u32 m;
    asm volatile("match.any.sync.b32 %0, %1, 0xffffffff;" : "=r"(m) : "r"(v));
    return m;
}

__device__ __forceinline__ u32 match_any(u64 v) {
    u32 m;
    asm volatile("match.any.sync.b64 %0, %1, 0xffffffff;" : "=r"(m) : "l"(v));
    return m;
}

} // namespace ep::ptx
