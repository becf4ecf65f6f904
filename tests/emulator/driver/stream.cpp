// Streams, copies, events, captures and graphs.
#include "driver.h"
#include "../graph.h"
#include <cstring>
#include <map>
#include <vector>

using namespace emulator;

DRIVER_API cuDevicePrimaryCtxRetain(Handle *context, int ordinal);

namespace {

using GraphHandle = std::shared_ptr<Graph>;

Event &event_of(Handle handle) { return *static_cast<Event *>(handle); }
const GraphHandle &graph_of(Handle handle) { return *static_cast<GraphHandle *>(handle); }

template <class T> T *pointer(Address address) { return reinterpret_cast<T *>(address); }

bool has_passed(const Event &event) { return !event.mark || event.mark->passed; }

Result put_at_once(Handle stream, std::function<void()> work) {
    if (!has_context()) return INVALID_CONTEXT;
    Lock lock(device_lock);
    if (stream_of(stream).device != current_device()) return INVALID_HANDLE;
    put(stream_of(stream), {{}, [work = std::move(work)] {
                                work();
                                return true;
                            }});
    return SUCCESS;
}

} // namespace

Stream &emulator::stream_of(Handle handle) {
    static std::map<int, Stream *> otherwise;
    if (handle) return *static_cast<Stream *>(handle);
    Stream *&stream = otherwise[current_device()];
    if (!stream) stream = new_stream(current_device());
    return *stream;
}

DRIVER_API cuStreamCreate(Handle *stream, unsigned) {
    if (!has_context()) return INVALID_CONTEXT;
    Lock lock(device_lock);
    *stream = new_stream(current_device());
    return SUCCESS;
}

DRIVER_API cuStreamGetCtx(Handle stream, Handle *context) {
    for (int ordinal = 0; device_of(ordinal) >= 0; ordinal++)
        if (device_of(ordinal) == stream_of(stream).device) return cuDevicePrimaryCtxRetain(context, ordinal);
    return INVALID_HANDLE;
}

DRIVER_API cuStreamDestroy_v2(Handle stream) {
    Lock lock(device_lock);
    stream_of(stream).is_dropped = true;
    return SUCCESS;
}

DRIVER_API cuStreamSynchronize(Handle handle) {
    Lock lock(device_lock);
    Stream &stream = stream_of(handle);
    if (stream.capture) return CAPTURE_UNSUPPORTED;
    wait_until(lock, [&] { return stream.is_idle(); });
    return SUCCESS;
}

DRIVER_API cuStreamQuery(Handle handle) {
    Lock lock(device_lock);
    Stream &stream = stream_of(handle);
    return stream.capture ? CAPTURE_UNSUPPORTED : stream.is_idle() ? SUCCESS : NOT_READY;
}

// The bytes are taken at once, as those of memory that is not pinned are.
DRIVER_API cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Handle stream) {
    std::vector<char> taken(static_cast<const char *>(from), static_cast<const char *>(from) + bytes);
    return put_at_once(stream, [to, taken = std::move(taken)] { memcpy(pointer<char>(to), taken.data(), taken.size()); });
}

DRIVER_API cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Handle stream) {
    return put_at_once(stream, [=] { memcpy(to, pointer<char>(from), bytes); });
}

DRIVER_API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Handle stream) {
    return put_at_once(stream, [=] { memmove(pointer<char>(to), pointer<char>(from), bytes); });
}

DRIVER_API cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Handle stream) {
    return put_at_once(stream, [=] { memset(pointer<char>(to), value, bytes); });
}

// Until the word has come to the value; other comparisons are not emulated.
DRIVER_API cuStreamWaitValue32_v2(Handle stream, Address word, unsigned value, unsigned how) {
    if (how != 0) return INVALID_VALUE;
    Lock lock(device_lock);
    put(stream_of(stream), {{}, [=] { return int(__atomic_load_n(pointer<unsigned>(word), __ATOMIC_ACQUIRE) - value) >= 0; }});
    return SUCCESS;
}

DRIVER_API cuEventCreate(Handle *event, unsigned) {
    if (!has_context()) return INVALID_CONTEXT;
    Event *made = new Event;
    made->device = current_device();
    *event = made;
    return SUCCESS;
}

DRIVER_API cuEventDestroy_v2(Handle event) {
    Lock lock(device_lock);
    delete &event_of(event);
    return SUCCESS;
}

DRIVER_API cuEventRecord(Handle event, Handle stream) {
    Lock lock(device_lock);
    if (stream_of(stream).device != event_of(event).device) return INVALID_HANDLE;
    record(stream_of(stream), event_of(event));
    return SUCCESS;
}

DRIVER_API cuStreamWaitEvent(Handle stream, Handle event, unsigned) {
    Lock lock(device_lock);
    await(stream_of(stream), event_of(event));
    return SUCCESS;
}

DRIVER_API cuEventSynchronize(Handle event) {
    Lock lock(device_lock);
    auto mark = event_of(event).mark;
    wait_until(lock, [&] { return !mark || mark->passed; });
    return SUCCESS;
}

DRIVER_API cuEventQuery(Handle event) {
    Lock lock(device_lock);
    return has_passed(event_of(event)) ? SUCCESS : NOT_READY;
}

DRIVER_API cuEventElapsedTime_v2(float *milliseconds, Handle from, Handle to) {
    Lock lock(device_lock);
    const Event &first = event_of(from), &second = event_of(to);
    if (!first.mark || !second.mark) return INVALID_VALUE;
    if (!has_passed(first) || !has_passed(second)) return NOT_READY;
    *milliseconds = float(second.mark->milliseconds - first.mark->milliseconds);
    return SUCCESS;
}

// The modes of captures forbid calls of other threads. None of them disturbs a capture here.
DRIVER_API cuThreadExchangeStreamCaptureMode(unsigned *mode) {
    static thread_local unsigned mine;
    std::swap(mine, *mode);
    return SUCCESS;
}

DRIVER_API cuStreamGetCaptureInfo_v2(Handle handle, unsigned *status, uint64_t *id, Handle, Handle, Handle) {
    Lock lock(device_lock);
    const Stream &stream = stream_of(handle);
    *status = stream.capture ? 1 : 0;
    if (id) *id = stream.capture ? stream.capture->id : 0;
    return SUCCESS;
}

DRIVER_API cuStreamBeginCapture_v2(Handle handle, unsigned) {
    Lock lock(device_lock);
    Stream &stream = stream_of(handle);
    if (!handle || stream.capture) return CAPTURE_UNSUPPORTED;
    begin_capture(stream);
    return SUCCESS;
}

DRIVER_API cuStreamEndCapture(Handle handle, Handle *graph) {
    Lock lock(device_lock);
    GraphHandle captured = end_capture(stream_of(handle));
    if (!captured) return CAPTURE_INVALIDATED;
    *graph = new GraphHandle(captured);
    return SUCCESS;
}

DRIVER_API cuGraphInstantiateWithFlags(Handle *exec, Handle graph, uint64_t) {
    *exec = new GraphHandle(graph_of(graph));
    return SUCCESS;
}

DRIVER_API cuGraphDestroy(Handle graph) {
    delete &graph_of(graph);
    return SUCCESS;
}

DRIVER_API cuGraphExecDestroy(Handle exec) { return cuGraphDestroy(exec); }

DRIVER_API cuGraphLaunch(Handle exec, Handle stream) {
    Lock lock(device_lock);
    replay(*graph_of(exec), stream_of(stream));
    return SUCCESS;
}
