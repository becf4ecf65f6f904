// Numbers shared with the host: statuses, phases, operations, types and flags.
#pragma once
#include "../ptx/base.cuh"

namespace ep {

enum Status : u32 {
    SUCCESS = 0,
    CAPACITY_EXCEEDED = 3,
    BUSY = 7,
    CONCURRENT_USE = 8,
    INVALID_EXPERT_ID = 9,
    TIMEOUT = 60,
    ABORTED = 62,
    OP_MISMATCH = 63,
    INTERNAL = 90,
};

// The signal word arrays. SLICE and SIDE name waits on progress words, in reports only.
enum Phase : u32 { ENTER = 0, COUNTS = 1, DATA = 2, READ = 3, PHASES = 4, SLICE = 4, SIDE = 5 };

// The top four bits of a fingerprint.
enum Operation : u32 { OP_DISPATCH = 1, OP_COMBINE = 2, OP_BARRIER = 3 };

enum Sync : u32 { SYNC_AUTO = 0, SYNC_ACK = 1, SYNC_BARRIER = 2 };

enum WindowKind : u32 { DISPATCH_WINDOW = 0, COMBINE_WINDOW = 1, WINDOW_KINDS = 2 };
constexpr u32 MAX_WINDOWS = 8;
constexpr u32 NO_WINDOW = 0xffffffffu;

enum Dtype : u32 { BF16 = 1, FP16 = 2, FP32 = 3, FP8_E4M3 = 4, OPAQUE = 5, INT32 = 6, INT64 = 7 };
__device__ __forceinline__ u32 float_bytes(u32 dtype) { return dtype == FP32 ? 4 : 2; } // of those that are cast and summed
enum ScaleType : u32 { SCALE_NONE = 0, SCALE_FP32 = 1, SCALE_FP32_POW2 = 2, SCALE_UE8M0 = 3, SCALE_OPAQUE = 4 };

enum Flags : u32 {
    CACHED = 1,           // dispatch: the handle's routing is reused
    COPY_OUT = 2,         // dispatch by rank: rows go to caller memory; combine: rows come from caller memory
    COPY_SCALES = 1024,   // slotted dispatch by rank: scales go to caller memory
    KEEP_OPEN = 4,        // dispatch: the window's reads go on after the receive
    CLAIMED = 8,          // combine: the caller wrote its rows to a window or area that was claimed before
    EXACT = 16,           // combine by expert: every expert row crosses
    WEIGHTS_OF_DISPATCH = 32,
    OWN_ROWS = 256,       // slotted combine: this rank's own rows are summed where they lie
    ASCENDING_K = 64,     // combine: partial rows are added by their largest k, not by rank (REDUCED)
    LINK_MAY_OVERFLOW = 128, // dispatch by expert: the window has no room for every token of every rank
    GUARDED = 512,        // combine: all ranks have waited for its window when it was handed to its owners
};

// What an operation notes the time of, where it is traced. A phase ends at each but the first; the last ends at STAMPS.
enum Stamp : u32 { BEGUN = 0, ENTERED = 1, COUNTED = 2, SENT = 3, RECEIVED = 4, STAMPS = 5 };
constexpr u32 TRACE_EVENTS = 1 << 16;

// An epoch that no rank reaches: reads of a window go on.
constexpr u64 OPEN = ~0ull;

} // namespace ep
