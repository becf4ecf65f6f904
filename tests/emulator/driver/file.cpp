// What device memory is made of: files without names, so that they can be mapped twice, also by another process. A page that
// is not there lies at both ends of every range of addresses.
#include "driver.h"
#include <climits>
#include <fcntl.h>
#include <cstdio>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

constexpr size_t PAGE = 4096;
constexpr char NAME[] = "emulated device %d, exported as %u";

void *pointer(Address address) { return reinterpret_cast<void *>(address); }

size_t whole(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE + 2 * PAGE; }

uint64_t number_of(int descriptor) {
    struct stat found;
    return fstat(descriptor, &found) ? 0 : found.st_ino;
}

// The two numbers of the name.
bool read_name(int descriptor, int *device, unsigned *kinds) {
    char name[PATH_MAX] = {};
    std::string path = "/proc/self/fd/" + std::to_string(descriptor);
    if (readlink(path.c_str(), name, sizeof name - 1) < 0) return false;
    std::string format = std::string("/memfd:") + NAME;
    return sscanf(name, format.c_str(), device, kinds) == 2;
}

} // namespace

int emulator::new_file(size_t bytes, int device, unsigned kinds) {
    char name[64];
    snprintf(name, sizeof name, NAME, device, kinds);
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, off_t(bytes)) == 0) return file;
    close(file);
    return -1;
}

int emulator::device_of_file(int descriptor) {
    int device;
    unsigned kinds;
    return read_name(descriptor, &device, &kinds) ? device : -1;
}

unsigned emulator::kinds_of_file(int descriptor) {
    int device;
    unsigned kinds;
    return read_name(descriptor, &device, &kinds) ? kinds : 0;
}

emulator::Passed emulator::pass_on(int descriptor) { return {getpid(), descriptor, number_of(descriptor), {}}; }

int emulator::take_over(const Passed &passed) {
    std::string path = "/proc/" + std::to_string(passed.process) + "/fd/" + std::to_string(passed.descriptor);
    int taken = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (taken >= 0 && number_of(taken) == passed.file) return taken;
    close(taken);
    return -1;
}

Result emulator::reserve(Address *address, size_t bytes) {
    void *start = mmap(nullptr, whole(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    *address = reinterpret_cast<Address>(start) + PAGE;
    return SUCCESS;
}

void emulator::give_back(Address address, size_t bytes) { munmap(pointer(address - PAGE), whole(bytes)); }

bool emulator::map(Address address, size_t bytes, size_t offset, int descriptor, int protection) {
    int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
    return mmap(pointer(address), bytes, protection, flags, descriptor, off_t(offset)) != MAP_FAILED;
}
