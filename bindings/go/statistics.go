package deepep

// #include "shim.h"
import "C"

import (
	"time"
	"unsafe"
)

// Traffic counts rows and bytes (rows, scales, ids, weights), and the time spent waiting.
type Traffic struct {
	RowsSent, RowsReceived   uint64
	BytesSent, BytesReceived uint64
	WaitLast, WaitTotal      time.Duration // in the last operation and in all
}

// Statistics are the totals of one buffer since it was made.
type Statistics struct {
	Epoch         uint64 // the newest operation begun
	Dispatches    uint64
	Combines      uint64
	Barriers      uint64
	EntryBarriers uint64 // operations that had to wait for an entry barrier before they could write
	Traffic              // with all ranks, this one included
}

// Statistics reads the totals. It may run beside any other call; the numbers may then be of two moments.
func (b *Buffer) Statistics() (Statistics, error) {
	if err := b.gate.beside(); err != nil {
		return Statistics{}, err
	}
	defer b.gate.leaveBeside()
	out := C.deep_ep_statistics_t{struct_size: C.sizeof_deep_ep_statistics_t}
	if err := failure(C.deepep_go_buffer_statistics(b.c, &out)); err != nil {
		return Statistics{}, err
	}
	return Statistics{
		Epoch:         uint64(out.epoch),
		Dispatches:    uint64(out.dispatches),
		Combines:      uint64(out.combines),
		Barriers:      uint64(out.barriers),
		EntryBarriers: uint64(out.entry_barriers),
		Traffic: Traffic{
			RowsSent:      uint64(out.rows_sent),
			RowsReceived:  uint64(out.rows_received),
			BytesSent:     uint64(out.bytes_sent),
			BytesReceived: uint64(out.bytes_received),
			WaitLast:      time.Duration(out.wait_ns_last),
			WaitTotal:     time.Duration(out.wait_ns_total),
		},
	}, nil
}

// PeerStatistics reads the part of the totals that one rank accounts for; this rank's own number gives its local
// traffic. It may run beside any other call.
func (b *Buffer) PeerStatistics(peer int) (Traffic, error) {
	var n narrow
	rank := n.int32("PeerStatistics: peer", peer)
	if n.err != nil {
		return Traffic{}, n.err
	}
	if err := b.gate.beside(); err != nil {
		return Traffic{}, err
	}
	defer b.gate.leaveBeside()
	out := C.deep_ep_peer_statistics_t{struct_size: C.sizeof_deep_ep_peer_statistics_t}
	if err := failure(C.deepep_go_buffer_peer_statistics(b.c, rank, &out)); err != nil {
		return Traffic{}, err
	}
	return Traffic{
		RowsSent:      uint64(out.rows_sent),
		RowsReceived:  uint64(out.rows_received),
		BytesSent:     uint64(out.bytes_sent),
		BytesReceived: uint64(out.bytes_received),
		WaitLast:      time.Duration(out.wait_ns_last),
		WaitTotal:     time.Duration(out.wait_ns_total),
	}, nil
}

// ExpertStatistics reads how many rows each local expert has received. It may run beside any other call.
func (b *Buffer) ExpertStatistics() ([]uint64, error) {
	if err := b.gate.beside(); err != nil {
		return nil, err
	}
	defer b.gate.leaveBeside()
	rows := make([]uint64, len(b.localExperts))
	var first *C.uint64_t
	if len(rows) > 0 {
		first = (*C.uint64_t)(unsafe.Pointer(&rows[0]))
	}
	if err := failure(C.deepep_go_buffer_expert_statistics(b.c, first, C.size_t(len(rows)))); err != nil {
		return nil, err
	}
	return rows, nil
}

// Alive reads which ranks take part: all of them until a reset leaves some out. It may run beside any other call but
// Reset.
func (b *Buffer) Alive() ([]bool, error) {
	if err := b.gate.beside(); err != nil {
		return nil, err
	}
	defer b.gate.leaveBeside()
	mask := make([]byte, b.comm.NumRanks())
	if err := failure(C.deepep_go_buffer_alive(b.c, bytePointer(mask), C.size_t(len(mask)))); err != nil {
		return nil, err
	}
	alive := make([]bool, len(mask))
	for rank, is := range mask {
		alive[rank] = is != 0
	}
	return alive, nil
}

// Trace is the newest recorded phases as a Chrome trace in JSON. The buffer needs BufferConfig.Trace. It may run beside
// any other call.
func (b *Buffer) Trace() ([]byte, error) {
	if err := b.gate.beside(); err != nil {
		return nil, err
	}
	defer b.gate.leaveBeside()
	var needed C.size_t
	if err := failure(C.deepep_go_buffer_trace(b.c, nil, 0, &needed)); err != nil {
		return nil, err
	}
	// An operation beside this call may have made the text longer in between.
	for {
		text := make([]byte, int(needed)+4096)
		room := C.size_t(len(text))
		err := failure(C.deepep_go_buffer_trace(b.c, (*C.char)(unsafe.Pointer(&text[0])), room, &needed))
		if err == nil {
			return text[:needed-1], nil
		}
		if needed <= room {
			return nil, err
		}
	}
}
