package deepep

// #include "shim.h"
import "C"

import "time"

// Report says what went wrong, as far as programs can use it. Numbers are 0 or -1 where they do not apply.
type Report struct {
	Status       Status // StatusSuccess: nothing to report
	Operation    Operation
	Phase        Phase
	Rank         int     // the rank that writes this report
	FirstMissing int     // the first missing rank, or the rank that aborted; -1: none
	Missing      []int32 // the ranks that were missing, ascending
	Epoch        uint64  // the operation's number on this buffer
	Expected     uint64  // the signal that was waited for
	Seen         uint64  // the newest that had come, from FirstMissing
	Row, Value   int64   // bad expert id: row and value. Overflow: rows that fit and rows that were sent
	Waited       time.Duration
}

// Report reads the oldest thing the buffer has to report. A report that poisoned the buffer stays until Reset; a bad
// expert id or an overflow is cleared by this call. It may run beside any other call.
func (b *Buffer) Report() (Report, error) {
	if err := b.gate.beside(); err != nil {
		return Report{}, err
	}
	defer b.gate.leaveBeside()
	out := C.deep_ep_report_t{struct_size: C.sizeof_deep_ep_report_t}
	missing := make([]int32, b.comm.NumRanks())
	outcome := C.deepep_go_buffer_report(b.c, &out, int32Pointer(missing), C.size_t(len(missing)))
	if err := failure(outcome); err != nil {
		return Report{}, err
	}
	n := 0
	for n < len(missing) && n < int(out.num_missing) && missing[n] >= 0 {
		n++
	}
	return Report{
		Status:       Status(out.status),
		Operation:    Operation(out.operation),
		Phase:        Phase(out.phase),
		Rank:         int(out.rank),
		FirstMissing: int(out.first_missing),
		Missing:      missing[:n:n],
		Epoch:        uint64(out.epoch),
		Expected:     uint64(out.expected),
		Seen:         uint64(out.seen),
		Row:          int64(out.row),
		Value:        int64(out.value),
		Waited:       time.Duration(out.waited_ms) * time.Millisecond,
	}, nil
}
