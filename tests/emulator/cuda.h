// What CUDA C++ gives a kernel without an include, for a C++ compiler. Included before everything else.
#pragma once
#include "device.h"
#include <cmath>
#include <cstring>
#include <type_traits>

#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) alignas(bytes)

#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index
#define blockDim emulator::block_size
#define gridDim emulator::grid_size

// The name of this image.
extern "C" __attribute__((visibility("default"))) const char emulated_image[];
const char emulated_image[] = EMULATED_IMAGE;

// Takes the place of a kernel's head, see nvcc. The image's symbol of this name says how to run it.
#define EMULATED_KERNEL(threads, name, Parameters)                                                                             \
    static void name##_body(const Parameters &p);                                                                              \
    extern "C" __attribute__((visibility("default"))) const emulator::Kernel name;                                            \
    const emulator::Kernel name = {[](const void *p) { name##_body(*static_cast<const Parameters *>(p)); },                    \
                                   sizeof(Parameters), threads};                                                               \
    static void name##_body(const Parameters &p)

struct alignas(8) uint2 {
    unsigned x, y;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class A, class B> inline std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(a) < T(b) ? T(a) : T(b);
}

template <class A, class B> inline std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(a) > T(b) ? T(a) : T(b);
}

inline void __syncthreads() { emulator::block_barrier(false, false); }
inline int __syncthreads_or(int vote) { return emulator::block_barrier(vote != 0, true); }
inline void __syncwarp(unsigned mask = ~0u) { emulator::collect(emulator::Collective::SYNC, mask, 0); }

namespace emulator {

template <class T> inline uint64_t bits_of(T value) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T> inline T value_of(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned lane() { return thread_index.x % 32; }

} // namespace emulator

template <class T> inline T __shfl_sync(unsigned mask, T value, unsigned lane) {
    return emulator::value_of<T>(emulator::collect(emulator::Collective::SHUFFLE, mask, emulator::bits_of(value))[lane % 32]);
}

template <class T> inline T __shfl_xor_sync(unsigned mask, T value, unsigned other) {
    const uint64_t *values = emulator::collect(emulator::Collective::SHUFFLE_XOR, mask, emulator::bits_of(value));
    return emulator::value_of<T>(values[(emulator::lane() ^ other) % 32]);
}

template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
    const uint64_t *values = emulator::collect(emulator::Collective::SHUFFLE_UP, mask, emulator::bits_of(value));
    unsigned lane = emulator::lane();
    return lane >= distance ? emulator::value_of<T>(values[lane - distance]) : value;
}

inline unsigned __ballot_sync(unsigned mask, bool vote) {
    const uint64_t *votes = emulator::collect(emulator::Collective::VOTE, mask, vote);
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < 32; lane++) ballot |= unsigned(votes[lane]) << lane;
    return ballot;
}

inline int __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline int __all_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) == ~0u; }

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }

// The place of the nth set bit at or above `base`.
inline unsigned __fns(unsigned mask, unsigned base, int n) {
    for (unsigned bit = base; bit < 32; bit++)
        if (mask >> bit & 1 && --n == 0) return bit;
    return ~0u;
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float __uint_as_float(unsigned v) { return emulator::value_of<float>(v); }
inline unsigned __float_as_uint(float v) { return unsigned(emulator::bits_of(v)); }

template <class T> inline T __ldg(const T *p) { return *p; }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Other processes may share the memory, so these are atomic for the whole machine.
template <class T, class U> inline T atomicAdd(T *p, U v) { return __atomic_fetch_add(p, T(v), __ATOMIC_RELAXED); }
template <class T, class U> inline T atomicOr(T *p, U v) { return __atomic_fetch_or(p, T(v), __ATOMIC_RELAXED); }
template <class T, class U> inline T atomicExch(T *p, U v) { return __atomic_exchange_n(p, T(v), __ATOMIC_RELAXED); }

template <class T, class U> inline T atomicMax(T *p, U v) {
    T old = *p;
    while (old < T(v) && !__atomic_compare_exchange_n(p, &old, T(v), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
