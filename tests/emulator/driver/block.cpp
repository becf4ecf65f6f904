// cuMemAlloc, and how another process opens what it hands out (legacy IPC).
#include "driver.h"
#include "../random.h"
#include "../ranges.h"
#include "../stream.h"
#include <map>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

using namespace emulator;

namespace {

constexpr size_t DEVICE_BYTES = size_t(80) << 30;

struct Allocated {
    size_t bytes;
    int file, device;
};

struct Opened {
    size_t bytes;
    int device; // of the context that opened it
    unsigned times;
    std::pair<int32_t, uint64_t> key;
};

std::map<Address, Allocated> allocated;
std::map<Address, Opened> opened;

// Gives a file an address, at once for all users.
Result place(Address *address, size_t bytes, int file, Devices users) {
    if (Result result = reserve(address, bytes)) return result;
    if (!map(*address, bytes, 0, file, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
    add_range(*address, bytes, device_of_file(file), users);
    return SUCCESS;
}

void take_away(Address address, size_t bytes) {
    remove_range(address);
    give_back(address, bytes);
}

} // namespace

DRIVER_API cuMemGetInfo_v2(size_t *available, size_t *total) {
    size_t taken = 0;
    Lock lock(device_lock);
    for (auto [address, block] : allocated)
        if (block.device == current_device()) taken += block.bytes;
    *available = DEVICE_BYTES - taken;
    *total = DEVICE_BYTES;
    return SUCCESS;
}

DRIVER_API cuMemAlloc_v2(Address *address, size_t bytes) {
    int device = current_device();
    if (device < 0) return INVALID_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    int file = new_file(bytes, device, 0);
    if (file < 0) return OUT_OF_MEMORY;
    Lock lock(device_lock);
    if (Result result = place(address, bytes, file, users_of_blocks(device))) return result;
    allocated[*address] = {bytes, file, device};
    return SUCCESS;
}

// Waits for everything that the device has been told to do, as the driver does.
DRIVER_API cuMemFree_v2(Address address) {
    Lock lock(device_lock);
    auto found = allocated.find(address);
    if (found == allocated.end()) return INVALID_VALUE;
    Allocated block = found->second;
    wait_until(lock, [&] { return is_idle(block.device); });
    take_away(address, block.bytes);
    close(block.file);
    allocated.erase(address);
    return SUCCESS;
}

// Memory that was allocated while access was there has it at once; the rest gets it now.
void emulator::open_blocks(int owner, int user) {
    Lock lock(device_lock);
    for (auto [address, block] : allocated)
        if (block.device == owner) open_range(address, bit(user));
}

DRIVER_API cuIpcGetMemHandle(Passed *handle, Address address) {
    if (!setting("EMULATOR_IPC", 1)) return NOT_SUPPORTED;
    Lock lock(device_lock);
    auto next = allocated.upper_bound(address);
    if (next == allocated.begin()) return INVALID_VALUE;
    auto [start, block] = *--next;
    if (address >= start + block.bytes) return INVALID_VALUE;
    *handle = pass_on(block.file);
    return SUCCESS;
}

DRIVER_API cuIpcOpenMemHandle_v2(Address *address, Passed handle, unsigned) {
    int device = current_device();
    if (device < 0 || handle.process == getpid()) return INVALID_CONTEXT;
    if (!setting("EMULATOR_IPC", 1)) return NOT_SUPPORTED;
    std::pair<int32_t, uint64_t> key{handle.process, handle.file};
    Lock lock(device_lock);
    for (auto &[start, block] : opened) {
        if (block.key != key || block.device != device) continue;
        block.times++;
        *address = start;
        return SUCCESS;
    }
    int file = take_over(handle);
    struct stat found;
    if (file < 0 || fstat(file, &found)) return INVALID_VALUE;
    Result result = PEER_ACCESS_UNSUPPORTED;
    if (are_peers(device, device_of_file(file))) result = place(address, size_t(found.st_size), file, bit(device));
    close(file);
    if (result == SUCCESS) opened[*address] = {size_t(found.st_size), device, 1, key};
    return result;
}

DRIVER_API cuIpcCloseMemHandle(Address address) {
    Lock lock(device_lock);
    auto found = opened.find(address);
    if (found == opened.end()) return INVALID_VALUE;
    int device = found->second.device;
    wait_until(lock, [&] { return is_idle(device); });
    if (--found->second.times) return SUCCESS;
    take_away(address, found->second.bytes);
    opened.erase(found);
    return SUCCESS;
}
