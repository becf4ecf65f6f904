// Packed combine by expert, REDUCED: one partial row per rank crosses the link. The receiving half is that of the
// combine by rank.
#include "../impl/reduce.cuh"
#include "kernel.cuh"

using namespace ep;

DEEPEP_COMBINE(deepep_combine_reduced, , CombineParams, reduced_whole<Row>(p, s, dynamic))
DEEPEP_COMBINE(deepep_combine_reduced, _send, CombineParams, reduced_send<Row>(p, s, dynamic))
