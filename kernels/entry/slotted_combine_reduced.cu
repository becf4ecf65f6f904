// Slotted combine by expert, REDUCED: one partial sum per rank crosses the link.
#include "../impl/slot_combine.cuh"

using namespace ep;

#define DEEPEP_COMBINE(name, body, ...)                                                                                        \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ SlottedCombineParams p) {                \
        extern __shared__ __align__(16) char shared[];                                                                         \
        __shared__ CombineShared s;                                                                                            \
        body(p, s, ##__VA_ARGS__);                                                                                             \
    }

DEEPEP_COMBINE(deepep_slotted_combine_reduced_bf16, (slotted_whole<RowBf16, Kind::REDUCED>), shared)
DEEPEP_COMBINE(deepep_slotted_combine_reduced_bf16_send, (slotted_send<RowBf16, Kind::REDUCED>))
DEEPEP_COMBINE(deepep_slotted_combine_reduced_fp16, (slotted_whole<RowFp16, Kind::REDUCED>), shared)
DEEPEP_COMBINE(deepep_slotted_combine_reduced_fp16_send, (slotted_send<RowFp16, Kind::REDUCED>))
DEEPEP_COMBINE(deepep_slotted_combine_reduced_fp32, (slotted_whole<RowFp32, Kind::REDUCED>), shared)
DEEPEP_COMBINE(deepep_slotted_combine_reduced_fp32_send, (slotted_send<RowFp32, Kind::REDUCED>))
