// Results by name.
#include "driver.h"

DRIVER_API cuGetErrorName(int code, const char **name) {
    static const struct {
        int code;
        const char *name;
    } NAMES[] = {{SUCCESS, "CUDA_SUCCESS"},
                 {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                 {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
                 {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
                 {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
                 {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
                 {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
                 {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
                 {NOT_READY, "CUDA_ERROR_NOT_READY"},
                 {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
                 {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
                 {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
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
