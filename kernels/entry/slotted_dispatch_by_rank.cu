// Slotted dispatch by rank.
#include "../impl/slotted_dispatch.cuh"
#include "kernel.cuh"

using namespace ep;

DEEPEP_DISPATCH(512, deepep_slotted_dispatch_by_rank, SlottedDispatchParams, SlottedShared, false, prepare_slotted(p, dynamic), slotted_send_body, slotted_receive_body)
