// Bulk copies. A copy is asked for at once and made later, in any order; a store first reads its source, then writes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulator {

struct Thread;

// What a thread's groups of stores have not done yet, by the group's number.
struct BulkGroups {
    static constexpr unsigned KEPT = 64;

    unsigned newest = 0; // the group that is not committed yet
    unsigned unread[KEPT] = {}, unwritten[KEPT] = {};
};

struct BulkCopy {
    char *to;
    const char *from;
    unsigned bytes;
    uint64_t *barrier; // of a load
    Thread *owner;
    unsigned group;
    unsigned delay;         // steps until it gets on
    std::vector<char> read; // by a store that has not written yet
};

// Of one block.
class BulkCopies {
public:
    void add(BulkCopy copy);
    // Some of the copies get on.
    void step();
    // All of the block's threads have ended, and its shared memory goes.
    void check_end() const;
    bool is_empty() const { return copies.empty(); }

private:
    // Whether the copy is done.
    static bool advance(BulkCopy &copy);

    std::vector<BulkCopy> copies;
};

} // namespace emulator
