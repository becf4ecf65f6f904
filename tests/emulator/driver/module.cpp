// Images, kernels, launches. An image is a shared object that the compiler of this folder (nvcc) has made; what the real one
// makes is refused.
#include "driver.h"
#include "../graph.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

using namespace emulator;

namespace {

struct Module {
    void *object;
    int device;
};

struct Function {
    std::string name;
    const Kernel *kernel;
    int device;
};

// A shared object says itself where its last part ends.
size_t bytes_of(const Elf64_Ehdr &head) { return head.e_shoff + size_t(head.e_shnum) * head.e_shentsize; }

// The image's calls find the emulator among all symbols of the program.
void show_symbols() {
    Dl_info own;
    dladdr(reinterpret_cast<const void *>(show_symbols), &own);
    dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

void *load(const std::string &path) {
    void *object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!object) fprintf(stderr, "emulator: %s\n", dlerror());
    return object;
}

// EMULATOR_IMAGES is a folder of images that take the place of those of their names; see mutations.sh.
void *replaced(void *object) {
    const char *folder = getenv("EMULATOR_IMAGES");
    const void *name = dlsym(object, "emulated_image");
    if (!folder || !name) return object;
    std::string path = std::string(folder) + "/" + static_cast<const char *>(name);
    return access(path.c_str(), R_OK) == 0 ? load(path) : object;
}

} // namespace

DRIVER_API cuModuleLoadData(Handle *module, const void *image) {
    if (!has_context()) return INVALID_CONTEXT;
    Elf64_Ehdr head;
    memcpy(&head, image, sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) || head.e_type != ET_DYN) return INVALID_IMAGE;
    int file = memfd_create("emulated kernels", MFD_CLOEXEC);
    size_t bytes = bytes_of(head);
    if (file < 0 || write(file, image, bytes) != ssize_t(bytes)) return OUT_OF_MEMORY;
    show_symbols();
    void *object = load("/proc/self/fd/" + std::to_string(file)); // which stays open: dlopen knows objects by their path
    if (object) object = replaced(object);
    if (!object) return INVALID_IMAGE;
    *module = new Module{object, current_device()};
    return SUCCESS;
}

DRIVER_API cuModuleGetFunction(Handle *function, Handle handle, const char *name) {
    const Module &module = *static_cast<Module *>(handle);
    const void *kernel = dlsym(module.object, name);
    if (!kernel) return NOT_FOUND;
    *function = new Function{name, static_cast<const Kernel *>(kernel), module.device};
    return SUCCESS;
}

// Asked for: the bytes of static shared memory.
DRIVER_API cuFuncGetAttribute(int *value, int, Handle) {
    *value = int(MAX_STATIC_BYTES);
    return SUCCESS;
}

DRIVER_API cuFuncSetAttribute(Handle, int, int) { return SUCCESS; }

DRIVER_API cuFuncGetName(const char **name, Handle function) {
    *name = static_cast<Function *>(function)->name.c_str();
    return SUCCESS;
}

namespace {

constexpr unsigned ATTRIBUTE_MAY_BE_EARLY = 6;

struct LaunchAttribute {
    unsigned id;
    char pad[4];
    union {
        int may_be_early;
        char bytes[64];
    } value;
};

struct LaunchConfig {
    unsigned blocks, y, z, threads, thread_y, thread_z, dynamic_bytes;
    Handle stream;
    const LaunchAttribute *attributes;
    unsigned count;
};

} // namespace

DRIVER_API cuLaunchKernelEx(const LaunchConfig *config, Handle handle, void **parameters, void **) {
    auto [blocks, y, z, threads, thread_y, thread_z, dynamic_bytes, stream, attributes, count] = *config;
    bool may_be_early = false;
    for (unsigned i = 0; i < count; i++) {
        if (attributes[i].id != ATTRIBUTE_MAY_BE_EARLY) return INVALID_VALUE;
        may_be_early = attributes[i].value.may_be_early;
    }
    if (!has_context()) return INVALID_CONTEXT;
    const Function &function = *static_cast<Function *>(handle);
    const Kernel &kernel = *function.kernel;
    bool flat = y == 1 && z == 1 && thread_y == 1 && thread_z == 1;
    bool fits = threads <= kernel.max_threads && dynamic_bytes + MAX_STATIC_BYTES <= MAX_SHARED_BYTES;
    if (!flat || !fits || blocks == 0 || threads == 0 || threads % WARP) return INVALID_VALUE;
    std::vector<uint64_t> copy((kernel.parameter_bytes + 7) / 8);
    memcpy(copy.data(), parameters[0], kernel.parameter_bytes);
    int device = current_device();
    Lock lock(device_lock);
    if (function.device != device || stream_of(stream).device != device) return INVALID_HANDLE;
    put(stream_of(stream), {Launch{function.name, &kernel, blocks, threads, dynamic_bytes, std::move(copy), device, may_be_early}, {}});
    return SUCCESS;
}

DRIVER_API cuLaunchKernel(Handle handle, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned thread_y,
                          unsigned thread_z, unsigned dynamic_bytes, Handle stream, void **parameters, void **extra) {
    LaunchConfig config = {blocks, y, z, threads, thread_y, thread_z, dynamic_bytes, stream, nullptr, 0};
    return cuLaunchKernelEx(&config, handle, parameters, extra);
}
