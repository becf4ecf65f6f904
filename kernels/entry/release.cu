// The end of the reads of a handle, without a combine.
#include "../comm/start.cuh"
#include "checks.cuh"

using namespace ep;

// What was sent will not be received: the handle is gone.
__device__ void abandon(HandleRecord *record, const OperationState &op, Outcome &o) {
    u64 window = record->dispatching ? record->dispatching : record->combining;
    if (!window) return;
    o.abandoned = true;
    o.kind = record->dispatching ? DISPATCH_WINDOW : COMBINE_WINDOW;
    o.window = (u32)window - 1;
    o.ends = op.epoch; // the next one to be sent
    record->dispatching = record->combining = 0;
}

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_release(const __grid_constant__ ReleaseParams p) {
    __shared__ OperationState op;
    if (!starts(p.comm)) return;
    HandleRecord *record = at<HandleRecord>(p.record);
    if (!begin_alone(p.comm, op, record)) return;
    ptx::let_next_kernel_come();
    bool ends = op.held.open || (p.abandon && (record->dispatching || record->combining));
    bool acknowledged = ends && acknowledge(p.comm, op);
    __syncthreads();
    if (threadIdx.x != 0) return;
    Outcome o = no_outcome();
    o.reader = record;
    o.acknowledged = acknowledged;
    if (p.abandon) {
        o.claimer = record;
        abandon(record, op, o);
    }
    finish(p.comm, op, o);
}
