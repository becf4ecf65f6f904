// Slotted combine by expert, REDUCED: one partial sum per rank crosses the link.
#include "../impl/slot_combine.cuh"
#include "kernel.cuh"

using namespace ep;

DEEPEP_COMBINE(deepep_slotted_combine_reduced, , SlottedCombineParams, slotted_whole<Row, Kind::REDUCED>(p, s, dynamic))
DEEPEP_COMBINE(deepep_slotted_combine_reduced, _send, SlottedCombineParams, slotted_send<Row, Kind::REDUCED>(p, s))
