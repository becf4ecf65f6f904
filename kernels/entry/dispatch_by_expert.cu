// Packed dispatch by expert.
#include "../impl/dispatch_body.cuh"

using namespace ep;

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_dispatch_by_expert(const __grid_constant__ DispatchParams p) {
    extern __shared__ __align__(128) char dynamic[];
    __shared__ DispatchShared s;
    dispatch_send_body<true, false, Part::WHOLE>(p, s, dynamic);
}

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_dispatch_by_expert_send(const __grid_constant__ DispatchParams p) {
    extern __shared__ __align__(128) char dynamic[];
    __shared__ DispatchShared s;
    dispatch_send_body<true, false, Part::SEND>(p, s, dynamic);
}

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_dispatch_by_expert_recv(const __grid_constant__ DispatchParams p) {
    extern __shared__ __align__(128) char dynamic[];
    __shared__ DispatchShared s;
    dispatch_receive_body<true>(p, s, dynamic);
}

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_dispatch_by_expert_cast(const __grid_constant__ DispatchParams p) {
    extern __shared__ __align__(128) char dynamic[];
    __shared__ DispatchShared s;
    dispatch_send_body<true, true, Part::WHOLE>(p, s, dynamic);
}

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_dispatch_by_expert_cast_send(const __grid_constant__ DispatchParams p) {
    extern __shared__ __align__(128) char dynamic[];
    __shared__ DispatchShared s;
    dispatch_send_body<true, true, Part::SEND>(p, s, dynamic);
}
