// Packed combine by expert, REDUCED: one partial row per rank crosses the link. The receiving half is that of the
// combine by rank.
#include "../impl/reduce.cuh"

using namespace ep;

#define DEEPEP_REDUCED(name, row)                                                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ CombineParams p) {                       \
        extern __shared__ i32 first_row[];                                                                                     \
        __shared__ CombineShared s;                                                                                            \
        reduced_whole<row>(p, s, first_row);                                                                                   \
    }
#define DEEPEP_REDUCED_SEND(name, row)                                                                                         \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ CombineParams p) {                       \
        __shared__ CombineShared s;                                                                                            \
        reduced_send<row>(p, s);                                                                                               \
    }

DEEPEP_REDUCED(deepep_combine_reduced_bf16, RowBf16)
DEEPEP_REDUCED(deepep_combine_reduced_fp16, RowFp16)
DEEPEP_REDUCED(deepep_combine_reduced_fp32, RowFp32)
DEEPEP_REDUCED_SEND(deepep_combine_reduced_bf16_send, RowBf16)
DEEPEP_REDUCED_SEND(deepep_combine_reduced_fp16_send, RowFp16)
DEEPEP_REDUCED_SEND(deepep_combine_reduced_fp32_send, RowFp32)
