// Clocks, fences, barriers and warp votes. Fences order nothing here: all threads of a device take turns on one.
#pragma once
#include "base.cuh"

namespace ep::ptx {

// Every loop that polls looks at the clock or sleeps.
inline u64 nanoseconds() {
    yield();
    return emulator::nanoseconds();
}

inline void sleep(u32) { yield(); }

inline void await_kernel_before() { emulator::await_kernel_before(); }
inline void let_next_kernel_come() { emulator::let_next_kernel_come(); }

inline u32 lanes_below() { return (1u << lane_id()) - 1; }

inline void fence_proxy_async() {}
inline void fence_proxy_async_shared() {}
inline void fence_acq_rel_sys() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
inline void fence_acq_rel_gpu() {}

inline void barrier_sync(u32 number, u32 threads) { emulator::named_barrier(number, threads); }

template <class T, class Join> inline T reduce(emulator::Collective what, T v, Join join) {
    const uint64_t *values = emulator::collect(what, FULL, emulator::bits_of(v));
    T result = emulator::value_of<T>(values[0]);
    for (u32 lane = 1; lane < WARP; lane++) result = join(result, emulator::value_of<T>(values[lane]));
    return result;
}

inline u32 warp_min(u32 v) {
    return reduce(emulator::Collective::MIN, v, [](u32 a, u32 b) { return min(a, b); });
}

inline u32 warp_max(u32 v) {
    return reduce(emulator::Collective::MAX, v, [](u32 a, u32 b) { return max(a, b); });
}

inline i32 warp_sum(i32 v) {
    return reduce(emulator::Collective::SUM, v, [](i32 a, i32 b) { return i32(u32(a) + u32(b)); });
}

inline u32 match_any(u64 v) {
    const uint64_t *values = emulator::collect(emulator::Collective::MATCH, FULL, v);
    u32 equal = 0;
    for (u32 lane = 0; lane < WARP; lane++) equal |= u32(values[lane] == v) << lane;
    return equal;
}

inline u32 match_any(u32 v) { return match_any(u64(v)); }

} // namespace ep::ptx
