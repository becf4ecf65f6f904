// The frames of the kernels. A body sees the parameters `p`, the block's `s`, and `dynamic` shared memory; so does what is prepared
// ahead of it, while the kernel before may still run.
#pragma once
#include "../comm/start.cuh"

#define DEEPEP_PREPARED_KERNEL(threads, name, Params, Shared, prepare, ...)                                                    \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ Params p) {                          \
        extern __shared__ __align__(128) char dynamic[];                                                                       \
        __shared__ Shared s;                                                                                                   \
        if (is_rehearsal(p.comm)) return;                                                                                      \
        prepare;                                                                                                               \
        ptx::await_kernel_before();                                                                                            \
        __VA_ARGS__;                                                                                                           \
        (void)dynamic;                                                                                                         \
    }

#define DEEPEP_KERNEL(threads, name, Params, Shared, ...) DEEPEP_PREPARED_KERNEL(threads, name, Params, Shared, (void)0, __VA_ARGS__)

// The five kernels of a layout's dispatch, from the templates of its bodies. `prepare`: of those that send.
#define DEEPEP_DISPATCH(threads, name, Params, Shared, by_expert, prepare, send, receive)                                      \
    DEEPEP_PREPARED_KERNEL(threads, name, Params, Shared, prepare, send<by_expert, false, Part::WHOLE>(p, s, dynamic))         \
    DEEPEP_PREPARED_KERNEL(threads, name##_send, Params, Shared, prepare, send<by_expert, false, Part::SEND>(p, s, dynamic))   \
    DEEPEP_PREPARED_KERNEL(threads, name##_cast, Params, Shared, prepare, send<by_expert, true, Part::WHOLE>(p, s, dynamic))   \
    DEEPEP_PREPARED_KERNEL(threads, name##_cast_send, Params, Shared, prepare, send<by_expert, true, Part::SEND>(p, s, dynamic)) \
    DEEPEP_KERNEL(threads, name##_recv, Params, Shared, receive<by_expert>(p, s, dynamic))

// A combine, or half of one, for each type of row, which the body sees as `Row`.
#define DEEPEP_COMBINE_OF(type, name, Params, ...)                                                                             \
    DEEPEP_KERNEL(512, name, Params, CombineShared, using Row = type; __VA_ARGS__)
#define DEEPEP_COMBINE(name, part, Params, ...)                                                                                \
    DEEPEP_COMBINE_OF(RowBf16, name##_bf16##part, Params, __VA_ARGS__)                                                         \
    DEEPEP_COMBINE_OF(RowFp16, name##_fp16##part, Params, __VA_ARGS__)                                                         \
    DEEPEP_COMBINE_OF(RowFp32, name##_fp32##part, Params, __VA_ARGS__)
