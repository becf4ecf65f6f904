// What a buffer keeps in device memory between operations. Zeroed at create; a reset rewrites it.
#pragma once
#include "names.cuh"

namespace ep {

// Words that change only at the end of an operation, by its last block: every block copies them at its start.
struct BufferWords {
    u64 epoch;               // newest epoch sent
    u64 received;            // newest epoch received from every peer
    u64 sent[PHASES];        // signals sent so far in each phase
    u64 reads_ended;         // READ signals: number of read-ends announced
    u64 in_flight;           // operations sent and neither received nor abandoned
    u64 poisoned;            // status of the failure that ended this buffer, or 0
    u64 ends[WINDOW_KINDS][MAX_WINDOWS]; // first epoch sent after the reads of the window's last use ended; OPEN while they go on
    u64 acks[WINDOW_KINDS][MAX_WINDOWS]; // READ number that announced those ends
    u64 areas;               // a bit per local area whose received rows are read in place
    u64 claimed;             // a bit per combine window that its owner writes before the combine
};

struct alignas(128) BufferState {
    BufferWords words;
    alignas(128) u64 owner;  // the launch that is running, or 0
    u64 claim;               // nonzero once a failure has been reported
    u64 soft_claim;          // number of the newest report that does not poison
    u64 first_bad;           // lowest position of a bad id in this operation, or ~0 (kept inverted: 0 is none)
    u32 tickets[8];          // blocks that have finished each stage of the running operation
    u64 next_look;           // when a waiting thread may look at host memory again
    u64 aborted;             // the host's abort word as last seen
    u64 entered;             // nonzero while a launch runs: graphs that were made of one capture have launches of one number
};

// Totals since create. The part of each rank follows, then rows received by each local expert.
struct Counters {
    u64 epoch;               // newest begun
    u64 dispatches, combines, barriers, entry_barriers;
    u64 wait_last, wait_total; // nanoseconds
    u64 events;              // left for the trace
    u64 stamps[STAMPS];      // of the operation that runs, if it is traced
};

struct PeerCounters {
    u64 rows_sent, rows_received, bytes_sent, bytes_received;
    u64 wait_last, wait_total;
};

// In host-visible memory.
struct TraceEvent {
    u64 begin, end;
    u64 what;                // epoch << 16 | operation << 8 | the stamp at its end
    u64 number;              // from 1, written last
};

struct ClockWords {
    u64 asked, time, answered;
};

// Written by the host at any time, also while an operation runs.
struct BufferControl {
    u64 timeout_ns;
    u64 first_timeout_ns;    // holds while received <= first_until
    u64 first_until;
    u64 soft_cleared;        // number of the newest report that the host has taken
};

// In host-visible memory: one that poisons, then one that does not.
struct HostReport {
    u64 ready;               // 0, or the number of this report, written last
    u64 epoch, expected, seen;
    i64 row, value;
    u64 waited_ns;
    u32 status, operation, phase;
    i32 rank, num_missing, first_missing;
    u32 theirs, reserved;    // fingerprint of the peer's operation, where it is another
    u64 missing[];           // one bit per rank
};

// What one dispatch leaves for its receive, its combine and a cached dispatch.
struct HandleRecord {
    u64 dispatch_epoch, dispatch_turn, dispatch_refused;
    u64 combine_epoch, combine_turn, combine_refused;
    u64 num_tokens;
    u64 rows;                // handed out: by rank at most the capacity, by expert those of the link
    u64 expert_rows;         // end of the last aligned expert, at most the capacity
    u64 link_rows;           // in the window
    u64 capacity;            // of the receive's outputs
    u64 sent_rows, sent_expert_rows; // what was sent here, where the kept counts are of the rows that fit; else 0
    u64 told;                // newest launch outside of graphs whose counts the host has
    u64 open;                // 1 + the dispatch window that is read in place until combine or release, or 0
    u64 dispatching;         // 1 + the window of a dispatch that was sent and not received, or 0
    u64 combining;           // the same of a combine
    u64 area;                // 1 + the local area that is read in place, or 0
    u64 claim;               // 1 + the combine window that is written before the combine, or 0
    u64 reserved[5];
};

} // namespace ep
