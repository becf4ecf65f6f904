// Packed combine by expert, EXACT: the windows hold every expert row.
#include "../impl/combine_body.cuh"
#include "kernel.cuh"

using namespace ep;

DEEPEP_COMBINE(deepep_combine_exact, , CombineParams, combine_whole<Row, false>(p, s, dynamic))
DEEPEP_COMBINE(deepep_combine_exact, _send, CombineParams, combine_send<Row, false>(p, s))
DEEPEP_COMBINE(deepep_combine_exact, _recv, CombineParams, combine_receive<Row, false>(p, s, dynamic))
