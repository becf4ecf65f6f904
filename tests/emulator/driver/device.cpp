// Devices, contexts, and what devices have of each other. There are EMULATOR_GPUS of them (1).
#include "driver.h"
#include "../grid.h"
#include "../random.h"
#include "../ranges.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace {

using emulator::Devices;

struct Context {
    int device;
};

thread_local std::vector<Context *> contexts;

// Attributes that are asked for.
enum { L2_CACHE = 38, MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, SHARED_BYTES = 97, VIRTUAL_MEMORY = 102 };
enum { PEER_ACCESS = 2, PEER_ATOMICS = 3 };

std::vector<int> find_visible() {
    int all = std::min(int(emulator::setting("EMULATOR_GPUS", 1)), emulator::MAX_DEVICES);
    std::vector<int> visible;
    if (const char *list = getenv("CUDA_VISIBLE_DEVICES")) {
        std::istringstream numbers(list);
        for (std::string number; getline(numbers, number, ',');) {
            int device = atoi(number.c_str());
            if (device >= all) break; // the rest is ignored, as by the driver
            visible.push_back(device);
        }
    } else {
        for (int device = 0; device < all; device++) visible.push_back(device);
    }
    return visible;
}

const std::vector<int> &visible() {
    static const std::vector<int> found = find_visible();
    return found;
}

std::mutex peers_lock;
Devices users[emulator::MAX_DEVICES]; // of the blocks of each, beside itself

} // namespace

int emulator::device_of(int ordinal) {
    bool is_one = ordinal >= 0 && ordinal < int(visible().size());
    return is_one ? visible()[size_t(ordinal)] : -1;
}

int emulator::current_device() { return contexts.empty() || !contexts.back() ? -1 : contexts.back()->device; }

bool emulator::are_peers(int device, int other) { return device == other || setting("EMULATOR_PEERS", 1); }

Devices emulator::users_of_blocks(int owner) {
    std::lock_guard<std::mutex> guard(peers_lock);
    return bit(owner) | users[owner];
}

DRIVER_API cuInit(unsigned) { return SUCCESS; }

DRIVER_API cuDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

DRIVER_API cuDeviceGetCount(int *count) {
    *count = int(visible().size());
    return SUCCESS;
}

DRIVER_API cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return emulator::device_of(ordinal) >= 0 ? SUCCESS : INVALID_VALUE;
}

DRIVER_API cuDeviceGetName(char *name, int length, int) {
    snprintf(name, size_t(length), "emulated device");
    return SUCCESS;
}

DRIVER_API cuDeviceGetAttribute(int *value, int attribute, int) {
    switch (attribute) {
    case MULTIPROCESSORS: *value = int(emulator::setting("EMULATOR_SMS", 8)); return SUCCESS;
    case SHARED_BYTES: *value = int(emulator::MAX_SHARED_BYTES); return SUCCESS;
    case L2_CACHE: *value = 60 << 20; return SUCCESS;
    case MAJOR: *value = 9; return SUCCESS;
    case MINOR: *value = 0; return SUCCESS;
    case VIRTUAL_MEMORY: *value = int(emulator::setting("EMULATOR_VIRTUAL_MEMORY", 1)); return SUCCESS;
    default: return INVALID_VALUE;
    }
}

DRIVER_API cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    memset(uuid, emulator::device_of(device) + 1, 16);
    return SUCCESS;
}

DRIVER_API cuDeviceCanAccessPeer(int *can, int device, int other) {
    *can = device != other && emulator::are_peers(emulator::device_of(device), emulator::device_of(other));
    return SUCCESS;
}

DRIVER_API cuDeviceGetP2PAttribute(int *value, int attribute, int device, int other) {
    bool are_peers = emulator::are_peers(emulator::device_of(device), emulator::device_of(other));
    switch (attribute) {
    case PEER_ACCESS: *value = are_peers; return SUCCESS;
    case PEER_ATOMICS: *value = are_peers && emulator::setting("EMULATOR_PEER_ATOMICS", 1); return SUCCESS;
    default: return INVALID_VALUE;
    }
}

DRIVER_API cuDevicePrimaryCtxRetain(Handle *context, int ordinal) {
    static Context primary[emulator::MAX_DEVICES];
    int device = emulator::device_of(ordinal);
    if (device < 0) return INVALID_DEVICE;
    primary[device].device = device;
    *context = &primary[device];
    return SUCCESS;
}

DRIVER_API cuCtxCreate_v2(Handle *context, unsigned, int ordinal) {
    int device = emulator::device_of(ordinal);
    if (device < 0) return INVALID_DEVICE;
    contexts.push_back(new Context{device});
    *context = contexts.back();
    return SUCCESS;
}

DRIVER_API cuCtxDestroy_v2(Handle context) {
    if (!contexts.empty() && contexts.back() == context) contexts.pop_back();
    delete static_cast<Context *>(context);
    return SUCCESS;
}

DRIVER_API cuCtxPushCurrent_v2(Handle context) {
    contexts.push_back(static_cast<Context *>(context));
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
    if (context) contexts.push_back(static_cast<Context *>(context));
    return SUCCESS;
}

// The current context may use all blocks of the other's device.
DRIVER_API cuCtxEnablePeerAccess(Handle context, unsigned) {
    int user = emulator::current_device(), owner = static_cast<Context *>(context)->device;
    if (user < 0 || user == owner) return user < 0 ? INVALID_CONTEXT : INVALID_DEVICE;
    if (!emulator::are_peers(user, owner)) return PEER_ACCESS_UNSUPPORTED;
    {
        std::lock_guard<std::mutex> guard(peers_lock);
        if (users[owner] & emulator::bit(user)) return PEER_ACCESS_ALREADY_ENABLED;
        users[owner] |= emulator::bit(user);
    }
    emulator::open_blocks(owner, user);
    return SUCCESS;
}
