// The order of everything that may happen in any order.
#pragma once

namespace emulator {

unsigned random_below(unsigned limit);

// A number from the environment.
unsigned setting(const char *name, unsigned otherwise);

} // namespace emulator
