#include "random.h"
#include <cstdint>
#include <cstdlib>

namespace emulator {

unsigned setting(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text ? unsigned(strtoul(text, nullptr, 10)) : otherwise;
}

unsigned random_below(unsigned limit) {
    static uint64_t state = 0x9e3779b97f4a7c15ull * (1 + uint64_t(setting("EMULATOR_SEED", 1)));
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return unsigned((state >> 33) * limit >> 31);
}

} // namespace emulator
