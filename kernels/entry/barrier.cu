// A barrier of all ranks: one epoch that moves no rows. It may run beside operations in flight, so it takes no turn of
// theirs in the DATA phase.
#include "../comm/guard.cuh"

using namespace ep;

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_barrier(const __grid_constant__ BarrierParams p) {
    __shared__ OperationState op;
    begin(p.comm, op);
    if (op.status == CONCURRENT_USE) fail(p.comm, op, 0);
    if (op.status != SUCCESS) return;
    begin_counting(p.comm, op.epoch);
    u64 number = op.words.sent[ENTER];
    signal_peers(p.comm, ENTER, number, signal_value(p.comm, op.epoch));
    if (!wait_peers(p.comm, op, ENTER, number, op.epoch, true) || threadIdx.x != 0) return;
    if (p.counted) counters(p.comm)->barriers++;
    Outcome o = no_outcome();
    o.sent = o.received = true;
    o.signals[ENTER] = 1;
    finish(p.comm, op, o);
}
