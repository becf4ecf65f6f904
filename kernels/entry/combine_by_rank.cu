// Packed combine by rank: the windows hold partial sums.
#include "../impl/combine_body.cuh"

using namespace ep;

#define DEEPEP_COMBINE(name, body)                                                                                             \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ CombineParams p) {                      \
        __shared__ CombineShared s;                                                                                            \
        body;                                                                                                                  \
    }

DEEPEP_COMBINE(deepep_combine_by_rank_bf16, (combine_whole<RowBf16, true>)(p, s, nullptr))
DEEPEP_COMBINE(deepep_combine_by_rank_fp16, (combine_whole<RowFp16, true>)(p, s, nullptr))
DEEPEP_COMBINE(deepep_combine_by_rank_fp32, (combine_whole<RowFp32, true>)(p, s, nullptr))
DEEPEP_COMBINE(deepep_combine_by_rank_bf16_send, (combine_send<RowBf16, true>)(p, s))
DEEPEP_COMBINE(deepep_combine_by_rank_fp16_send, (combine_send<RowFp16, true>)(p, s))
DEEPEP_COMBINE(deepep_combine_by_rank_fp32_send, (combine_send<RowFp32, true>)(p, s))
DEEPEP_COMBINE(deepep_combine_by_rank_bf16_recv, (combine_receive<RowBf16, true>)(p, s, nullptr))
DEEPEP_COMBINE(deepep_combine_by_rank_fp16_recv, (combine_receive<RowFp16, true>)(p, s, nullptr))
DEEPEP_COMBINE(deepep_combine_by_rank_fp32_recv, (combine_receive<RowFp32, true>)(p, s, nullptr))
