// A barrier of all ranks: one epoch that moves no rows.
#include "../comm/guard.cuh"

using namespace ep;

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_barrier(const __grid_constant__ BarrierParams p) {
    __shared__ OperationState op;
    begin(p.comm, op);
    if (op.status == CONCURRENT_USE) fail(p.comm, op, 0);
    if (op.status != SUCCESS) return;
    u64 number = op.words.sent[DATA];
    signal_peers(p.comm, DATA, number, signal_value(p.comm, op.epoch));
    if (!wait_peers(p.comm, op, DATA, number, op.epoch) || threadIdx.x != 0) return;
    Outcome o = no_outcome();
    o.sent = o.received = true;
    o.signals[DATA] = 1;
    finish(p.comm, op, o);
}
