// Virtual memory management.
#include "driver.h"
#include "../random.h"
#include "../ranges.h"
#include "../stream.h"
#include <sys/mman.h>
#include <unistd.h>

using namespace emulator;

namespace {

constexpr size_t GRANULARITY = 4096; // the smallest, so that little lies between an allocation and its guard
constexpr size_t DEVICE_BYTES = size_t(80) << 30;

enum Kind : unsigned { DESCRIPTOR = 1, FABRIC = 8 };

// As the driver's documentation has them, as far as they matter here.
struct Location {
    int type, id;
};

struct Properties {
    int type;
    unsigned kinds;
    Location location;
};

struct Access {
    Location location;
    int flags;
};

// A memory handle is a descriptor; 0 is none.
int descriptor_of(Address handle) { return int(handle) - 1; }
Address handle_of(int descriptor) { return Address(descriptor) + 1; }

bool has_virtual_memory() { return setting("EMULATOR_VIRTUAL_MEMORY", 1); }

// Real machines have said that there is a fabric and then not let anyone use it: that is how it is here, too, unless
// EMULATOR_FABRIC is 1.
Result may_export(unsigned kinds) {
    if (kinds & FABRIC && !setting("EMULATOR_FABRIC", 0)) return NOT_PERMITTED;
    if (kinds & DESCRIPTOR && !setting("EMULATOR_DESCRIPTORS", 1)) return NOT_SUPPORTED;
    return SUCCESS;
}

} // namespace

DRIVER_API cuMemGetAllocationGranularity(size_t *bytes, const Properties *, unsigned) {
    *bytes = GRANULARITY;
    return has_virtual_memory() ? SUCCESS : NOT_SUPPORTED;
}

DRIVER_API cuMemCreate(Address *handle, size_t bytes, const Properties *properties, uint64_t) {
    if (!has_virtual_memory()) return NOT_SUPPORTED;
    if (bytes == 0 || bytes % GRANULARITY) return INVALID_VALUE;
    if (bytes > DEVICE_BYTES) return OUT_OF_MEMORY;
    if (Result result = may_export(properties->kinds)) return result;
    int device = device_of(properties->location.id);
    if (device < 0) return INVALID_DEVICE;
    int file = new_file(bytes, device, properties->kinds);
    *handle = handle_of(file);
    return file < 0 ? OUT_OF_MEMORY : SUCCESS;
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
    int file = descriptor_of(handle);
    if (!map(address, bytes, offset, file, PROT_NONE)) return INVALID_VALUE;
    add_range(address, bytes, device_of_file(file), 0);
    return SUCCESS;
}

DRIVER_API cuMemSetAccess(Address address, size_t bytes, const Access *accesses, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int device = device_of(accesses[i].location.id);
        if (device < 0 || !are_peers(device, owner_of_range(address))) return INVALID_DEVICE;
        open_range(address, bit(device));
    }
    int protection = PROT_READ | PROT_WRITE;
    return count == 0 || mprotect(reinterpret_cast<void *>(address), bytes, protection) ? INVALID_VALUE : SUCCESS;
}

DRIVER_API cuMemUnmap(Address address, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    void *unmapped = mmap(reinterpret_cast<void *>(address), bytes, PROT_NONE, flags, -1, 0);
    remove_range(address);
    return unmapped == MAP_FAILED ? INVALID_VALUE : SUCCESS;
}

DRIVER_API cuMemExportToShareableHandle(void *exported, Address handle, unsigned kind, uint64_t) {
    int file = descriptor_of(handle);
    if (!(kinds_of_file(file) & kind)) return INVALID_VALUE;
    if (kind == FABRIC) {
        *static_cast<Passed *>(exported) = pass_on(file);
        return SUCCESS;
    }
    int copy = dup(file);
    *static_cast<int *>(exported) = copy;
    return copy < 0 ? INVALID_VALUE : SUCCESS;
}

DRIVER_API cuMemImportFromShareableHandle(Address *handle, Handle exported, unsigned kind) {
    if (Result result = may_export(kind)) return result;
    int copy = kind == FABRIC ? take_over(*static_cast<Passed *>(exported)) : dup(int(reinterpret_cast<intptr_t>(exported)));
    *handle = handle_of(copy);
    return copy < 0 ? INVALID_VALUE : SUCCESS;
}

DRIVER_API cuMemHostAlloc(Handle *memory, size_t bytes, unsigned) {
    if (!has_context()) return INVALID_CONTEXT;
    return posix_memalign(memory, GRANULARITY, bytes) ? OUT_OF_MEMORY : SUCCESS;
}

DRIVER_API cuMemHostRegister_v2(Handle, size_t, unsigned) { return has_context() ? SUCCESS : INVALID_CONTEXT; }

DRIVER_API cuMemHostGetDevicePointer_v2(Address *address, Handle memory, unsigned) {
    *address = reinterpret_cast<Address>(memory);
    return SUCCESS;
}
