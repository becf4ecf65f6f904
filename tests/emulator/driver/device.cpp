// The device and contexts.
#include "driver.h"
#include "../grid.h"
#include "../random.h"
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

thread_local std::vector<Handle> contexts;

// Attributes that are asked for.
enum { L2_CACHE = 38, MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, SHARED_BYTES = 97, VIRTUAL_MEMORY = 102 };

} // namespace

bool emulator::has_context() { return !contexts.empty() && contexts.back(); }

DRIVER_API cuInit(unsigned) { return SUCCESS; }

DRIVER_API cuDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

DRIVER_API cuGetErrorName(int code, const char **name) {
    static const struct {
        int code;
        const char *name;
    } NAMES[] = {{SUCCESS, "CUDA_SUCCESS"},
                 {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                 {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
                 {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
                 {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
                 {NOT_READY, "CUDA_ERROR_NOT_READY"},
                 {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
                 {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}};
    for (const auto &known : NAMES) {
        if (known.code != code) continue;
        *name = known.name;
        return SUCCESS;
    }
    *name = nullptr;
    return INVALID_VALUE;
}

DRIVER_API cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

DRIVER_API cuDeviceGetCount(int *count) {
    *count = DEVICES;
    return SUCCESS;
}

DRIVER_API cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal < DEVICES ? SUCCESS : INVALID_VALUE;
}

DRIVER_API cuDeviceGetName(char *name, int length, int) {
    snprintf(name, size_t(length), "emulated device");
    return SUCCESS;
}

DRIVER_API cuDeviceGetAttribute(int *value, int attribute, int) {
    switch (attribute) {
    case MULTIPROCESSORS: *value = int(emulator::setting("EMULATOR_SMS", 16)); return SUCCESS;
    case SHARED_BYTES: *value = int(emulator::MAX_SHARED_BYTES); return SUCCESS;
    case L2_CACHE: *value = 60 << 20; return SUCCESS;
    case MAJOR: *value = 9; return SUCCESS;
    case MINOR: *value = 0; return SUCCESS;
    case VIRTUAL_MEMORY: *value = 1; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

DRIVER_API cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    memset(uuid, device + 1, 16);
    return SUCCESS;
}

DRIVER_API cuDeviceCanAccessPeer(int *can, int, int) {
    *can = 1;
    return SUCCESS;
}

DRIVER_API cuDevicePrimaryCtxRetain(Handle *context, int device) {
    static char primary[DEVICES];
    *context = &primary[device];
    return SUCCESS;
}

DRIVER_API cuCtxCreate_v2(Handle *context, unsigned, int) {
    *context = new char;
    contexts.push_back(*context);
    return SUCCESS;
}

DRIVER_API cuCtxDestroy_v2(Handle context) {
    if (!contexts.empty() && contexts.back() == context) contexts.pop_back();
    delete static_cast<char *>(context);
    return SUCCESS;
}

DRIVER_API cuCtxPushCurrent_v2(Handle context) {
    contexts.push_back(context);
    return SUCCESS;
}

DRIVER_API cuCtxPopCurrent_v2(Handle *context) {
    if (contexts.empty()) return INVALID_CONTEXT;
    *context = contexts.back();
    contexts.pop_back();
    return SUCCESS;
}

DRIVER_API cuCtxGetCurrent(Handle *context) {
    *context = contexts.empty() ? nullptr : contexts.back();
    return SUCCESS;
}

DRIVER_API cuCtxSetCurrent(Handle context) {
    if (!contexts.empty()) contexts.pop_back();
    if (context) contexts.push_back(context);
    return SUCCESS;
}
