// A barrier of all ranks: one epoch that moves no rows. It may run beside operations in flight, so it takes no turn of
// theirs in the DATA phase.
#include "../comm/guard.cuh"
#include "../comm/start.cuh"

using namespace ep;

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_barrier(const __grid_constant__ BarrierParams p) {
    __shared__ OperationState op;
    if (!starts(p.comm)) return;
    if (!begin_alone(p.comm, op, nullptr)) return;
    if (meet(p.comm, op) && p.counted) counters(p.comm)->barriers++;
}
