// Before a combine window from which peers pull is handed to its owner: waits for all of them where the window may still be
// read. What that takes is decided here, because only the device knows what replays have left.
#include "checks.cuh"

using namespace ep;

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_claim(const __grid_constant__ ClaimParams p) {
    __shared__ OperationState op;
    begin(p.comm, op);
    if (op.status == CONCURRENT_USE) fail(p.comm, op, 0);
    if (op.status != SUCCESS) return;
    Guard guard = guard_of_window(p.comm, op, COMBINE_WINDOW, p.window);
    if (guard == ENTRY_BARRIER) return meet(p.comm, op);
    if (!pass_guard(p.comm, op, guard, COMBINE_WINDOW, p.window) || threadIdx.x != 0) return;
    if (guard == REFUSED) report_soft(p.comm, op, BUSY, -1, -1);
    finish(p.comm, op, no_outcome());
}
