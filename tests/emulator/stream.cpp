#include "stream.h"
#include "fault.h"
#include "random.h"
#include <condition_variable>
#include <ctime>
#include <thread>
#include <unistd.h>

namespace emulator {

// The device's thread runs until the program has ended, so what it uses is never destroyed.
std::mutex &device_lock = *new std::mutex;

namespace {

std::vector<std::unique_ptr<Stream>> &streams = *new std::vector<std::unique_ptr<Stream>>;
std::condition_variable &enqueued = *new std::condition_variable, &changed = *new std::condition_variable;

// The next command, if it can be.
bool begins(Stream &stream, const Command &next) {
    if (!next.launch) return stream.running.empty() && next.pass();
    std::shared_ptr<const bool> before;
    if (!stream.running.empty()) {
        const Grid &last = *stream.running.back();
        if (!next.launch->may_be_early || !last.lets_next_come()) return false;
        before = last.ended;
    }
    stream.running.push_back(std::make_unique<Grid>(*next.launch, before));
    return true;
}

// Starts and ends what can be.
void advance(Stream &stream) {
    for (;;) {
        if (!stream.running.empty() && stream.running.front()->is_done()) {
            *stream.running.front()->ended = true;
            stream.running.pop_front();
        } else if (stream.queue.empty() || !begins(stream, stream.queue.front())) {
            return;
        } else {
            stream.queue.pop_front();
        }
        progress++;
        changed.notify_all();
    }
}

void drop_idle() {
    for (size_t i = 0; i < streams.size();) {
        if (streams[i]->is_dropped && streams[i]->is_idle())
            streams.erase(streams.begin() + long(i));
        else
            i++;
    }
}

[[noreturn]] void run_device() {
    catch_faults();
    constexpr unsigned PATIENCE = 200; // rounds without progress after which other threads of the machine get the time
    unsigned still = 0;
    Lock lock(device_lock);
    for (;;) {
        uint64_t before = progress;
        std::vector<Grid *> running;
        bool waits = false;
        for (auto &stream : streams) {
            advance(*stream);
            for (const auto &grid : stream->running) running.push_back(grid.get());
            waits |= !stream->queue.empty();
        }
        drop_idle();
        if (running.empty() && !waits) {
            enqueued.wait(lock);
            continue;
        }
        lock.unlock();
        for (Grid *grid : running)
            if (random_below(4)) grid->step();
        still = progress == before ? still + 1 : 0;
        if (running.empty() || still > PATIENCE) usleep(50);
        lock.lock();
    }
}

} // namespace

uint64_t nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000 + uint64_t(now.tv_nsec);
}

Stream *new_stream(int device) {
    static bool started = (std::thread(run_device).detach(), true);
    (void)started;
    streams.push_back(std::make_unique<Stream>());
    streams.back()->device = device;
    return streams.back().get();
}

void enqueue(Stream &stream, Command command) {
    stream.queue.push_back(std::move(command));
    enqueued.notify_one();
}

void wait_until(Lock &lock, const std::function<bool()> &condition) { changed.wait(lock, condition); }

bool is_idle(int device) {
    for (auto &stream : streams)
        if (stream->device == device && !stream->is_idle()) return false;
    return true;
}

} // namespace emulator
