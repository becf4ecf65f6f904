// Packed dispatch by rank.
#include "../impl/dispatch_body.cuh"
#include "kernel.cuh"

using namespace ep;

DEEPEP_DISPATCH(768, deepep_dispatch_by_rank, DispatchParams, DispatchShared, false, prepare_dispatch(p, s, dynamic, false), dispatch_send_body, dispatch_receive_body)
