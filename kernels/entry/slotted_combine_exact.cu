// Slotted combine by expert, EXACT: every expert row crosses the link.
#include "../impl/slot_combine.cuh"
#include "kernel.cuh"

using namespace ep;

DEEPEP_COMBINE(deepep_slotted_combine_exact, , SlottedCombineParams, slotted_whole<Row, Kind::EXACT>(p, s, dynamic))
DEEPEP_COMBINE(deepep_slotted_combine_exact, _send, SlottedCombineParams, slotted_send<Row, Kind::EXACT>(p, s))
DEEPEP_COMBINE(deepep_slotted_combine_exact, _recv, SlottedCombineParams, slotted_receive<Row, Kind::EXACT>(p, s, dynamic))
