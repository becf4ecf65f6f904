// Slotted dispatch by rank.
#include "../impl/slotted_dispatch.cuh"

using namespace ep;

#define DEEPEP_SLOTTED(name, body)                                                                                             \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ SlottedDispatchParams p) {              \
        extern __shared__ __align__(16) char shared[];                                                                         \
        __shared__ SlottedShared s;                                                                                            \
        body(p, s, shared);                                                                                                    \
    }

DEEPEP_SLOTTED(deepep_slotted_dispatch_by_rank, (slotted_send_body<false, false, Part::WHOLE>))
DEEPEP_SLOTTED(deepep_slotted_dispatch_by_rank_send, (slotted_send_body<false, false, Part::SEND>))
DEEPEP_SLOTTED(deepep_slotted_dispatch_by_rank_cast, (slotted_send_body<false, true, Part::WHOLE>))
DEEPEP_SLOTTED(deepep_slotted_dispatch_by_rank_cast_send, (slotted_send_body<false, true, Part::SEND>))
DEEPEP_SLOTTED(deepep_slotted_dispatch_by_rank_recv, (slotted_receive_body<false>))
