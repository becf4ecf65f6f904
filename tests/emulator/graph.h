// Captures and graphs. A graph keeps what was captured, by lanes: one for each stream that took part. Lanes run beside each
// other, held in order by marks.
#pragma once
#include "stream.h"

namespace emulator {

// Passed when everything before it has been done.
struct Mark {
    bool passed = false;
    double milliseconds = 0;
};

// An event is a mark that is replaced whenever it is recorded; in a capture a number that each replay makes a mark of.
struct Event {
    std::shared_ptr<Mark> mark;
    std::shared_ptr<Graph> capture;
    size_t number = 0;
    int device = 0;
};

struct Node {
    unsigned lane;
    Command command;
    std::optional<size_t> sets, awaits; // a mark, instead of a command
};

struct Graph {
    uint64_t id;
    std::vector<Node> nodes;
    size_t marks = 0;
    unsigned lanes = 1;
    std::vector<Stream *> streams; // of the capture; of the graph those that its lanes but the first run on
};

// To the stream, or to the capture it is in.
void put(Stream &stream, Command command);
void record(Stream &stream, Event &event);
void await(Stream &stream, const Event &event);

void begin_capture(Stream &stream);
// Null if it is in none.
std::shared_ptr<Graph> end_capture(Stream &stream);
void replay(Graph &graph, Stream &stream);

} // namespace emulator
