// Slotted dispatch by expert.
#include "../impl/slotted_dispatch.cuh"
#include "kernel.cuh"

using namespace ep;

DEEPEP_DISPATCH(512, deepep_slotted_dispatch_by_expert, SlottedDispatchParams, SlottedShared, true, prepare_slotted(p, dynamic), slotted_send_body, slotted_receive_body)
