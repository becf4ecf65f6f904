// Packed combine by expert, EXACT: the windows hold every expert row.
#include "../impl/combine_body.cuh"

using namespace ep;

#define DEEPEP_COMBINE(name, body)                                                                                             \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ CombineParams p) {                      \
        extern __shared__ i32 tally[];                                                                                         \
        __shared__ CombineShared s;                                                                                            \
        body;                                                                                                                  \
    }

DEEPEP_COMBINE(deepep_combine_exact_bf16, (combine_whole<RowBf16, false>)(p, s, tally))
DEEPEP_COMBINE(deepep_combine_exact_fp16, (combine_whole<RowFp16, false>)(p, s, tally))
DEEPEP_COMBINE(deepep_combine_exact_fp32, (combine_whole<RowFp32, false>)(p, s, tally))
DEEPEP_COMBINE(deepep_combine_exact_bf16_send, (combine_send<RowBf16, false>)(p, s))
DEEPEP_COMBINE(deepep_combine_exact_fp16_send, (combine_send<RowFp16, false>)(p, s))
DEEPEP_COMBINE(deepep_combine_exact_fp32_send, (combine_send<RowFp32, false>)(p, s))
DEEPEP_COMBINE(deepep_combine_exact_bf16_recv, (combine_receive<RowBf16, false>)(p, s, tally))
DEEPEP_COMBINE(deepep_combine_exact_fp16_recv, (combine_receive<RowFp16, false>)(p, s, tally))
DEEPEP_COMBINE(deepep_combine_exact_fp32_recv, (combine_receive<RowFp32, false>)(p, s, tally))
