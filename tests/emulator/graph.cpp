#include "graph.h"
#include <ctime>

namespace emulator {

namespace {

Command set(std::shared_ptr<Mark> mark) {
    return {{}, [mark] {
                timespec now;
                clock_gettime(CLOCK_MONOTONIC, &now);
                mark->milliseconds = double(now.tv_sec) * 1e3 + double(now.tv_nsec) / 1e6;
                return mark->passed = true;
            }};
}

Command until(std::shared_ptr<Mark> mark) {
    return {{}, [mark] { return mark->passed; }};
}

} // namespace

void put(Stream &stream, Command command) {
    if (!stream.capture) return enqueue(stream, std::move(command));
    stream.capture->nodes.push_back({stream.lane, std::move(command), {}, {}});
}

void record(Stream &stream, Event &event) {
    event.capture = stream.capture;
    if (stream.capture) {
        event.number = stream.capture->marks++;
        stream.capture->nodes.push_back({stream.lane, {}, event.number, {}});
        return;
    }
    event.mark = std::make_shared<Mark>();
    enqueue(stream, set(event.mark));
}

void await(Stream &stream, const Event &event) {
    if (!event.capture) {
        if (event.mark) put(stream, until(event.mark));
        return;
    }
    if (!stream.capture) { // the stream joins the capture
        stream.capture = event.capture;
        stream.lane = event.capture->lanes++;
        event.capture->streams.push_back(&stream);
    }
    stream.capture->nodes.push_back({stream.lane, {}, {}, event.number});
}

void begin_capture(Stream &stream) {
    static uint64_t captures;
    stream.capture = std::make_shared<Graph>();
    stream.capture->id = ++captures;
    stream.capture->streams.push_back(&stream);
    stream.lane = 0;
}

std::shared_ptr<Graph> end_capture(Stream &stream) {
    std::shared_ptr<Graph> graph = stream.capture;
    if (!graph) return nullptr;
    for (Stream *taken : graph->streams) taken->capture = nullptr;
    graph->streams.clear();
    return graph;
}

void replay(Graph &graph, Stream &stream) {
    while (graph.streams.size() + 1 < graph.lanes) graph.streams.push_back(new_stream(stream.device));
    std::vector<std::shared_ptr<Mark>> marks(graph.marks);
    for (auto &mark : marks) mark = std::make_shared<Mark>();
    for (const Node &node : graph.nodes) {
        Stream &lane = node.lane ? *graph.streams[node.lane - 1] : stream;
        enqueue(lane, node.sets ? set(marks[*node.sets]) : node.awaits ? until(marks[*node.awaits]) : node.command);
    }
}

} // namespace emulator
