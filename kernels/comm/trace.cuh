// When the phases of an operation began and ended, for the host: a ring of events in host-visible memory. Nothing but a
// comparison where a buffer is not traced.
#pragma once
#include "statistics.cuh"

namespace ep {

// One thread says that a phase has ended; the operation's last block reads what all blocks have stamped.
__device__ __forceinline__ void stamp(const CommParams &c, Stamp which) {
    if (c.trace) counters(c)->stamps[which] = ptx::nanoseconds();
}

// One thread of block 0, before any other stamp of the operation.
__device__ __forceinline__ void stamp_begin(const CommParams &c) {
    if (!c.trace) return;
    for (u32 i = ENTERED; i < STAMPS; i++) counters(c)->stamps[i] = 0;
    stamp(c, BEGUN);
}

// The phase that ended at `which`.
__device__ inline void leave_event(const CommParams &c, u64 epoch, u32 which, u64 begin, u64 end) {
    u64 number = ++counters(c)->events;
    TraceEvent *event = at<TraceEvent>(c.trace) + (number - 1) % TRACE_EVENTS;
    ptx::store_relaxed_sys(&event->begin, begin);
    ptx::store_relaxed_sys(&event->end, end);
    ptx::store_relaxed_sys(&event->what, epoch << 16 | (c.fingerprint >> 12) << 8 | which);
    ptx::store_release_sys(&event->number, number);
}

// The thread that ends the operation.
__device__ inline void trace_operation(const CommParams &c, u64 epoch) {
    if (!c.trace) return;
    u64 begin = counters(c)->stamps[BEGUN];
    for (u32 which = ENTERED; which < STAMPS; which++) {
        u64 end = counters(c)->stamps[which];
        if (!end) continue;
        leave_event(c, epoch, which, begin, end);
        begin = end;
    }
    leave_event(c, epoch, STAMPS, begin, ptx::nanoseconds());
}

} // namespace ep
