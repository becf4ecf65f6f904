// Slotted combine by rank: slots hold the callers' partial sums. The receiving half serves REDUCED by expert too.
#include "../impl/slot_combine.cuh"
#include "kernel.cuh"

using namespace ep;

DEEPEP_COMBINE(deepep_slotted_combine_by_rank, , SlottedCombineParams, slotted_whole<Row, Kind::BY_RANK>(p, s, dynamic))
DEEPEP_COMBINE(deepep_slotted_combine_by_rank, _send, SlottedCombineParams, slotted_send<Row, Kind::BY_RANK>(p, s))
DEEPEP_COMBINE(deepep_slotted_combine_by_rank, _recv, SlottedCombineParams, slotted_receive<Row, Kind::BY_RANK>(p, s, dynamic))
