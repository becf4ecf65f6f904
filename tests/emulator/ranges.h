// Device memory by address: whose it is, and which devices may use it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulator {

using Devices = uint32_t; // one bit for each

constexpr int MAX_DEVICES = 16;

inline Devices bit(int device) { return Devices(1) << device; }

void add_range(uint64_t address, size_t bytes, int owner, Devices users);
void remove_range(uint64_t address);
// More users of a range.
void open_range(uint64_t address, Devices users);
int owner_of_range(uint64_t address); // or -1
// Ends the program if a kernel of this device must not touch the memory. What is in no range is the host's.
void check_use(int device, const void *memory, size_t bytes, bool is_gpu_scope);

} // namespace emulator
