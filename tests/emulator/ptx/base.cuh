// Integer names and helpers, from the kernels' own file.
#pragma once
#include "base_of_kernels.cuh"

namespace ep::ptx {

using emulator::yield;

// Addresses of vectors are multiples of their size.
template <class T> inline const T *aligned(const void *p) {
    if (reinterpret_cast<u64>(p) % sizeof(T)) emulator::violation("%zu bytes at %p, which is no multiple", sizeof(T), p);
    return static_cast<const T *>(p);
}

template <class T> inline T *aligned(void *p) { return const_cast<T *>(aligned<T>(static_cast<const void *>(p))); }

} // namespace ep::ptx
