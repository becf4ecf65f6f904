#include "ranges.h"
#include "device.h"
#include "block.h"
#include "grid.h"
#include <map>
#include <mutex>

namespace emulator {

namespace {

struct Range {
    size_t bytes;
    int owner;
    Devices users;
};

std::mutex &lock = *new std::mutex;
std::map<uint64_t, Range> &ranges = *new std::map<uint64_t, Range>;

} // namespace

void add_range(uint64_t address, size_t bytes, int owner, Devices users) {
    std::lock_guard<std::mutex> guard(lock);
    ranges[address] = {bytes, owner, users};
}

void remove_range(uint64_t address) {
    std::lock_guard<std::mutex> guard(lock);
    ranges.erase(address);
}

void open_range(uint64_t address, Devices users) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = ranges.find(address);
    if (found != ranges.end()) found->second.users |= users;
}

int owner_of_range(uint64_t address) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = ranges.find(address);
    return found == ranges.end() ? -1 : found->second.owner;
}

void check_use(int device, const void *memory, size_t bytes, bool is_gpu_scope) {
    uint64_t address = reinterpret_cast<uint64_t>(memory);
    Range range;
    {
        std::lock_guard<std::mutex> guard(lock);
        auto next = ranges.upper_bound(address);
        if (next == ranges.begin()) return;
        auto [start, found] = *--next;
        if (address >= start + found.bytes) return;
        if (address + bytes > start + found.bytes) violation("%zu bytes at %p, beyond their memory", bytes, memory);
        range = found;
    }
    if (!(range.users & bit(device)))
        violation("device %d has no access to memory of device %d, at %p", device, range.owner, memory);
    if (is_gpu_scope && range.owner != device)
        violation("an operation of gpu scope by device %d on memory of device %d, at %p", device, range.owner, memory);
}

void check_system(const void *memory, size_t bytes) { check_use(current->block.grid.launch.device, memory, bytes, false); }
void check_gpu(const void *memory, size_t bytes) { check_use(current->block.grid.launch.device, memory, bytes, true); }

} // namespace emulator
