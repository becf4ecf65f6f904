// Packed dispatch by rank.
#include "../impl/dispatch_body.cuh"

using namespace ep;

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_dispatch_by_rank(const __grid_constant__ DispatchParams p) {
    extern __shared__ __align__(128) char dynamic[];
    __shared__ DispatchShared s;
    dispatch_send_body<false, false, Part::WHOLE>(p, s, dynamic);
}

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_dispatch_by_rank_send(const __grid_constant__ DispatchParams p) {
    extern __shared__ __align__(128) char dynamic[];
    __shared__ DispatchShared s;
    dispatch_send_body<false, false, Part::SEND>(p, s, dynamic);
}

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_dispatch_by_rank_recv(const __grid_constant__ DispatchParams p) {
    extern __shared__ __align__(128) char dynamic[];
    __shared__ DispatchShared s;
    dispatch_receive_body<false>(p, s, dynamic);
}

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_dispatch_by_rank_cast(const __grid_constant__ DispatchParams p) {
    extern __shared__ __align__(128) char dynamic[];
    __shared__ DispatchShared s;
    dispatch_send_body<false, true, Part::WHOLE>(p, s, dynamic);
}

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_dispatch_by_rank_cast_send(const __grid_constant__ DispatchParams p) {
    extern __shared__ __align__(128) char dynamic[];
    __shared__ DispatchShared s;
    dispatch_send_body<false, true, Part::SEND>(p, s, dynamic);
}
