// The driver API's types and results, as its documentation has them: numbers and pointers.
#pragma once
#include <cstddef>
#include <cstdint>

#define DRIVER_API extern "C" __attribute__((visibility("default"))) Result

using Result = int;
using Handle = void *;
using Address = uint64_t;

constexpr Result SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
                 INVALID_CONTEXT = 201, PEER_ACCESS_UNSUPPORTED = 217, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
                 PEER_ACCESS_ALREADY_ENABLED = 704, NOT_PERMITTED = 800, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900,
                 CAPTURE_INVALIDATED = 901;

namespace emulator {

// Devices have numbers that are the same in every process; a process's own, its ordinals, count those it sees
// (CUDA_VISIBLE_DEVICES).
int device_of(int ordinal);
// That of the calling thread's current context, which most functions need; -1 if it has none.
int current_device();
inline bool has_context() { return current_device() >= 0; }
// Whether there is a link between them.
bool are_peers(int device, int other);
// The devices whose contexts may use what cuMemAlloc hands out on this one.
uint32_t users_of_blocks(int owner);
void open_blocks(int owner, int user);

// A handle's stream; null is the default stream of the current context's device.
struct Stream;
Stream &stream_of(Handle handle);

// What passes memory on to another process where it is not a descriptor itself: whose descriptor it is, and of which file.
struct Passed {
    int32_t process, descriptor;
    uint64_t file;
    char rest[48];
};
static_assert(sizeof(Passed) == 64, "as long as the driver's");

Passed pass_on(int descriptor);
// A descriptor of one's own, or -1.
int take_over(const Passed &passed);

// The files that device memory is know whose it is, and by which kinds of handles it may be exported.
int new_file(size_t bytes, int device, unsigned kinds);
int device_of_file(int descriptor);
unsigned kinds_of_file(int descriptor);

// A range of addresses with a page that is not there at both ends.
Result reserve(Address *address, size_t bytes);
void give_back(Address address, size_t bytes);
bool map(Address address, size_t bytes, size_t offset, int descriptor, int protection);

} // namespace emulator
