// Loads, stores and atomics. Those between processors are atomic for the whole machine, since ranks may be processes and
// the host looks on; the ones that order others may let other threads run first.
#pragma once
#include "base.cuh"

namespace ep::ptx {

template <class T> inline T load(const T *p, int order) { return __atomic_load_n(aligned<T>(p), order); }
template <class T> inline void store(T *p, T v, int order) { __atomic_store_n(aligned<T>(p), v, order); }

template <class T> inline T load_acquire(const T *p) {
    yield();
    return load(p, __ATOMIC_ACQUIRE);
}

template <class T> inline void store_release(T *p, T v) {
    emulator::perhaps_yield();
    store(p, v, __ATOMIC_RELEASE);
}

template <class T> inline T add(T *p, T v) {
    emulator::perhaps_yield();
    return __atomic_fetch_add(aligned<T>(p), v, __ATOMIC_ACQ_REL);
}

// Memory of another device may be used, where there is access; but at gpu scope its own device alone sees the order.
template <class T> inline T *on_system(T *p) {
    emulator::check_system(p, sizeof(T));
    return p;
}

template <class T> inline T *on_gpu(T *p) {
    emulator::check_gpu(p, sizeof(T));
    return p;
}

inline u64 load_acquire_sys(const u64 *p) { return load_acquire(on_system(p)); }
inline u64 load_relaxed_sys(const u64 *p) { return load(on_system(p), __ATOMIC_RELAXED); }
inline u64 load_relaxed_gpu(const u64 *p) { return load(on_gpu(p), __ATOMIC_RELAXED); }
inline u32 load_relaxed_gpu(const u32 *p) { return load(on_gpu(p), __ATOMIC_RELAXED); }
inline u32 load_acquire_gpu(const u32 *p) { return load_acquire(on_gpu(p)); }

inline void store_release_sys(u64 *p, u64 v) { store_release(on_system(p), v); }
inline void store_relaxed_sys(u64 *p, u64 v) { store(on_system(p), v, __ATOMIC_RELAXED); }
inline void store_release_gpu(u64 *p, u64 v) { store_release(on_gpu(p), v); }
inline void store_relaxed_gpu(u32 *p, u32 v) { store(on_gpu(p), v, __ATOMIC_RELAXED); }
inline void store_relaxed_gpu(u64 *p, u64 v) { store(on_gpu(p), v, __ATOMIC_RELAXED); }

inline u32 add_acq_rel_gpu(u32 *p, u32 v) { return add(on_gpu(p), v); }
inline u32 take_relaxed_gpu(u32 *p, u32 v) { return add(on_gpu(p), v); }
inline void add_relaxed_gpu(u32 *p, u32 v) { add(on_gpu(p), v); }
inline void add_relaxed_gpu(u64 *p, u64 v) { add(on_gpu(p), v); }
inline void add_release_gpu(u32 *p, u32 v) { add(on_gpu(p), v); }
inline void add_release_gpu(u64 *p, u64 v) { add(on_gpu(p), v); }
inline void add_release_sys(u64 *p, u64 v) { add(on_system(p), v); }

inline void min_relaxed_gpu(u64 *p, u64 v) {
    u64 old = load_relaxed_gpu(p); // which looks at the address
    while (v < old && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

inline u64 swap_if_equal_gpu(u64 *p, u64 expected, u64 v) {
    __atomic_compare_exchange_n(aligned<u64>(on_gpu(p)), &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

inline void prefetch_l1(const void *) {}
inline void prefetch_l2(const void *) {}
inline u32 load_ahead(const u32 *p) { return *aligned<u32>(p); }
inline u64 load_ahead(const u64 *p) { return *aligned<u64>(p); }
inline uint4 load_row16(const void *p) { return *aligned<uint4>(p); }
inline void store_row16(void *p, uint4 v) { *aligned<uint4>(p) = v; }
inline void store_row8(void *p, uint2 v) { *aligned<uint2>(p) = v; }

inline u32 read_acquire_shared(u32 *p) { return load_acquire(p); }
inline void raise_release_shared(u32 *p, u32 v) { atomicMax(p, v); }

} // namespace ep::ptx
