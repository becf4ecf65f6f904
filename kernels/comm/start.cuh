// The start of kernels.
#pragma once
#include "../layout/params.cuh"
#include "../ptx/special.cuh"

namespace ep {

// When they are loaded all kernels run once, without parameters: what the driver does at first launches, it does then.
__device__ __forceinline__ bool is_rehearsal(const CommParams &c) { return c.ranks == 0; }

// Launches are programmatic: the kernel before may still be running. All threads; false: there is nothing to do.
__device__ __forceinline__ bool starts(const CommParams &c) {
    if (is_rehearsal(c)) return false;
    ptx::await_kernel_before();
    return true;
}

} // namespace ep
