// Packed combine by rank: the windows hold partial sums.
#include "../impl/combine_body.cuh"
#include "kernel.cuh"

using namespace ep;

DEEPEP_COMBINE(deepep_combine_by_rank, , CombineParams, combine_whole<Row, true>(p, s, dynamic))
DEEPEP_COMBINE(deepep_combine_by_rank, _send, CombineParams, combine_send<Row, true>(p, s))
DEEPEP_COMBINE(deepep_combine_by_rank, _recv, CombineParams, combine_receive<Row, true>(p, s, dynamic))
