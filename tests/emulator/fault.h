// The end of a program whose kernel did what no kernel may do.
#pragma once
#include "device.h"

namespace emulator {

struct Block;

const char *name_of(Collective what);
// No thread of the block can go on.
[[noreturn]] void stuck(const Block &block);
// Bad accesses of kernels are told from those of the program; in the thread that runs the kernels.
void catch_faults();

} // namespace emulator
