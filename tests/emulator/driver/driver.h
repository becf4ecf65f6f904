// The driver API's types and results, as its documentation has them: numbers and pointers.
#pragma once
#include <cstddef>
#include <cstdint>

#define DRIVER_API extern "C" __attribute__((visibility("default"))) Result

using Result = int;
using Handle = void *;
using Address = uint64_t;

constexpr Result SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500,
                 NOT_READY = 600, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901;

constexpr int DEVICES = 1;

namespace emulator {

// Whether the calling thread has a current context, which most functions need.
bool has_context();

// A handle's stream; null is the default stream.
struct Stream;
Stream &stream_of(Handle handle);

} // namespace emulator
