// Memory: device memory is a file without a name, so that it can be mapped twice, also by another process. A page that is
// not there lies at both ends of every range of addresses.
#include "driver.h"
#include "../stream.h"
#include <cstdlib>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr size_t PAGE = 4096;
constexpr size_t GRANULARITY = PAGE; // the smallest, so that little lies between an allocation and its guard
constexpr size_t DEVICE_BYTES = size_t(80) << 30;
constexpr int NO_ACCESS = PROT_NONE, FULL_ACCESS = PROT_READ | PROT_WRITE;

// A memory handle is a descriptor; 0 is none.
int descriptor_of(Address handle) { return int(handle) - 1; }
Address handle_of(int descriptor) { return Address(descriptor) + 1; }

void *pointer(Address address) { return reinterpret_cast<void *>(address); }

Result reserve(Address *address, size_t bytes) {
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE + 2 * PAGE;
    void *start = mmap(nullptr, whole, NO_ACCESS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    *address = reinterpret_cast<Address>(start) + PAGE;
    return SUCCESS;
}

void give_back(Address address, size_t bytes) { munmap(pointer(address - PAGE), (bytes + PAGE - 1) / PAGE * PAGE + 2 * PAGE); }

std::map<Address, size_t> allocated; // by cuMemAlloc

} // namespace

DRIVER_API cuMemGetAllocationGranularity(size_t *bytes, const void *, unsigned) {
    *bytes = GRANULARITY;
    return SUCCESS;
}

DRIVER_API cuMemCreate(Address *handle, size_t bytes, const void *, uint64_t) {
    if (bytes == 0 || bytes % GRANULARITY) return INVALID_VALUE;
    if (bytes > DEVICE_BYTES) return OUT_OF_MEMORY;
    int file = memfd_create("emulated device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, off_t(bytes))) return OUT_OF_MEMORY;
    *handle = handle_of(file);
    return SUCCESS;
}

DRIVER_API cuMemRelease(Address handle) {
    close(descriptor_of(handle));
    return SUCCESS;
}

DRIVER_API cuMemAddressReserve(Address *address, size_t bytes, size_t, Address, uint64_t) {
    return bytes == 0 || bytes % GRANULARITY ? INVALID_VALUE : reserve(address, bytes);
}

DRIVER_API cuMemAddressFree(Address address, size_t bytes) {
    give_back(address, bytes);
    return SUCCESS;
}

// Without access before cuMemSetAccess gives it.
DRIVER_API cuMemMap(Address address, size_t bytes, size_t offset, Address handle, uint64_t) {
    int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
    void *mapped = mmap(pointer(address), bytes, NO_ACCESS, flags, descriptor_of(handle), off_t(offset));
    return mapped == MAP_FAILED ? INVALID_VALUE : SUCCESS;
}

DRIVER_API cuMemSetAccess(Address address, size_t bytes, const void *, size_t devices) {
    return devices == 0 || mprotect(pointer(address), bytes, FULL_ACCESS) ? INVALID_VALUE : SUCCESS;
}

DRIVER_API cuMemUnmap(Address address, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    return mmap(pointer(address), bytes, NO_ACCESS, flags, -1, 0) == MAP_FAILED ? INVALID_VALUE : SUCCESS;
}

DRIVER_API cuMemExportToShareableHandle(int *descriptor, Address handle, unsigned, uint64_t) {
    *descriptor = dup(descriptor_of(handle));
    return *descriptor < 0 ? INVALID_VALUE : SUCCESS;
}

DRIVER_API cuMemImportFromShareableHandle(Address *handle, Handle descriptor, unsigned) {
    int copy = dup(int(reinterpret_cast<intptr_t>(descriptor)));
    *handle = handle_of(copy);
    return copy < 0 ? INVALID_VALUE : SUCCESS;
}

DRIVER_API cuMemGetInfo_v2(size_t *available, size_t *total) {
    size_t taken = 0;
    emulator::Lock lock(emulator::device_lock);
    for (auto [address, bytes] : allocated) taken += bytes;
    *available = DEVICE_BYTES - taken;
    *total = DEVICE_BYTES;
    return SUCCESS;
}

DRIVER_API cuMemAlloc_v2(Address *address, size_t bytes) {
    if (!emulator::has_context()) return INVALID_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    if (Result result = reserve(address, bytes)) return result;
    mprotect(pointer(*address), bytes, FULL_ACCESS);
    emulator::Lock lock(emulator::device_lock);
    allocated[*address] = bytes;
    return SUCCESS;
}

// Waits for everything that the device has been told to do, as the driver does.
DRIVER_API cuMemFree_v2(Address address) {
    emulator::Lock lock(emulator::device_lock);
    auto found = allocated.find(address);
    if (found == allocated.end()) return INVALID_VALUE;
    emulator::wait_until(lock, emulator::all_idle);
    give_back(address, found->second);
    allocated.erase(found);
    return SUCCESS;
}

DRIVER_API cuMemHostAlloc(Handle *memory, size_t bytes, unsigned) {
    if (!emulator::has_context()) return INVALID_CONTEXT;
    return posix_memalign(memory, PAGE, bytes) ? OUT_OF_MEMORY : SUCCESS;
}

DRIVER_API cuMemHostRegister_v2(Handle, size_t, unsigned) { return emulator::has_context() ? SUCCESS : INVALID_CONTEXT; }

DRIVER_API cuMemHostGetDevicePointer_v2(Address *address, Handle memory, unsigned) {
    *address = reinterpret_cast<Address>(memory);
    return SUCCESS;
}
