// Prefix sums over the lanes of a warp.
#pragma once
#include "../ptx/base.cuh"

namespace ep {

// The sum over the lanes up to and with this one. All lanes.
template <class T> __device__ __forceinline__ T sum_to_lane(T v) {
    for (u32 d = 1; d < WARP; d *= 2) {
        T below = __shfl_up_sync(FULL, v, d);
        if (lane_id() >= d) v += below;
    }
    return v;
}

} // namespace ep
