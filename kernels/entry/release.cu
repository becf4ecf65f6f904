// The end of the reads of a window, without a combine.
#include "checks.cuh"

using namespace ep;

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_release(const __grid_constant__ ReleaseParams p) {
    __shared__ OperationState op;
    begin(p.comm, op);
    if (op.status == CONCURRENT_USE) fail(p.comm, op, 0);
    if (op.status != SUCCESS) return;
    Outcome o = no_outcome();
    o.kind = p.kind;
    o.window = p.window;
    o.ends = op.epoch; // the next one to be sent
    o.acknowledged = acknowledge(p.comm, op);
    if (threadIdx.x == 0) finish(p.comm, op, o);
}
