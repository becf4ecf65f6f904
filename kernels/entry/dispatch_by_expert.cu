// Packed dispatch by expert.
#include "../impl/dispatch_body.cuh"
#include "kernel.cuh"

using namespace ep;

DEEPEP_DISPATCH(768, deepep_dispatch_by_expert, DispatchParams, DispatchShared, true, prepare_dispatch(p, s, dynamic, true), dispatch_send_body, dispatch_receive_body)
