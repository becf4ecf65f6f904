// Gives a combine window, or the local area that goes with it, to a handle whose owner writes it before the combine. Waits
// for the peers that may still read the window. All of it is decided here, because only the device knows what replays have
// left.
#include "../comm/start.cuh"
#include "checks.cuh"

using namespace ep;

extern "C" __global__ void __launch_bounds__(1024, 1) deepep_claim(const __grid_constant__ ClaimParams p) {
    __shared__ OperationState op;
    if (!starts(p.comm)) return;
    HandleRecord *record = at<HandleRecord>(p.record);
    if (!begin_alone(p.comm, op, record)) return;
    u64 bit = 1ull << p.window;
    bool mine = op.held.claim == 1 + p.window;
    Guard guard = p.pulled ? guard_of_window(p.comm, guard_words(op, COMBINE_WINDOW, p.window)) : WRITE_AT_ONCE;
    if (op.words.claimed & bit && !mine) guard = REFUSED;
    if (threadIdx.x == 0 && guard != REFUSED) {
        record->claim = 1 + p.window;
        buffer_state(p.comm)->words.claimed = op.words.claimed | bit;
    }
    if (guard == ENTRY_BARRIER) {
        meet(p.comm, op);
        return;
    }
    if (!pass_guard(p.comm, op, guard, COMBINE_WINDOW, p.window) || threadIdx.x != 0) return;
    ptx::let_next_kernel_come();
    if (guard == REFUSED) report_soft(p.comm, op, BUSY, -1, -1);
    finish(p.comm, op, no_outcome());
}
