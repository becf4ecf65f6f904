// With two_units_b.cpp: both headers in two translation units of one program.

#include "deep_ep.hpp"

#include <cstdio>

int ranks_of_other_unit();

int main() {
    const auto comms = deepep::Comm::local(3);
    if (static_cast<int>(comms.size()) == ranks_of_other_unit())
        return 0;
    std::fputs("the two units disagree\n", stderr);
    return 1;
}
