// Streams: queues of commands that one thread, which is all devices, works off.
#pragma once
#include "grid.h"
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

namespace emulator {

struct Graph;

struct Command {
    // Either a kernel,
    std::optional<Launch> launch;
    // or what the device does, or finds out, at once: true when the stream may go on.
    std::function<bool()> pass;
};

struct Stream {
    std::deque<Command> queue;
    std::deque<std::unique_ptr<Grid>> running; // each but the first has come early
    std::shared_ptr<Graph> capture; // that the stream is in
    unsigned lane = 0;              // of that capture
    bool is_dropped = false;        // goes when it is idle
    int device = 0;

    bool is_idle() const { return queue.empty() && running.empty(); }
};

// Guards all streams, events and graphs.
extern std::mutex &device_lock;

using Lock = std::unique_lock<std::mutex>;

// With the lock held:
Stream *new_stream(int device);
void enqueue(Stream &stream, Command command);
// Waits until it is true; the device says whenever something has changed.
void wait_until(Lock &lock, const std::function<bool()> &condition);
bool is_idle(int device);

} // namespace emulator
