package deepep

// #include "shim.h"
import "C"

import (
	"runtime"
	"sync"
	"time"
	"unsafe"
)

// Buffer is memory that all ranks of a group share, for the operations of one rank.
type Buffer struct {
	gate   gate // also for its handles
	c      *C.deep_ep_buffer_t
	comm   *Comm
	config BufferConfig

	localExperts []int32
	slabs, rows  int // what a dispatch fills at most

	lostLock sync.Mutex
	lost     []*C.deep_ep_handle_t // handles that the garbage collector found; destroyed after the buffer
	gone     bool                  // the buffer is destroyed
}

// NewBuffer allocates a buffer, maps it on all ranks and compares the configuration across them. Every rank of the comm
// calls it, and it waits for them.
func (c *Comm) NewBuffer(config BufferConfig) (*Buffer, error) {
	cc, err := config.c()
	if err != nil {
		return nil, err
	}
	if err := c.gate.exclusive(); err != nil {
		return nil, err
	}
	defer c.gate.leave()
	var out *C.deep_ep_buffer_t
	if err := failure(C.deepep_go_buffer_create(c.c, &cc, int32Pointer(config.ExpertRank), &out)); err != nil {
		return nil, err
	}
	return newBuffer(out, c, config)
}

// NewBuffersLocal allocates the buffers of all ranks of one JoinLocal at once, in rank order.
func NewBuffersLocal(comms []*Comm, config BufferConfig) ([]*Buffer, error) {
	cc, err := config.c()
	if err != nil {
		return nil, err
	}
	if len(comms) == 0 || comms[0] == nil || len(comms) != comms[0].NumRanks() {
		return nil, invalid("NewBuffersLocal: %d comms; give all of one JoinLocal", len(comms))
	}
	pointers := make([]*C.deep_ep_comm_t, len(comms))
	for i, comm := range comms {
		if comm == nil {
			return nil, invalid("NewBuffersLocal: comms[%d] is nil", i)
		}
		if err := comm.gate.exclusive(); err != nil {
			return nil, err
		}
		defer comm.gate.leave()
		pointers[i] = comm.c
	}
	out := make([]*C.deep_ep_buffer_t, len(comms))
	outcome := C.deepep_go_buffer_create_local(&pointers[0], &cc, int32Pointer(config.ExpertRank), &out[0])
	if err := failure(outcome); err != nil {
		return nil, err
	}
	buffers := make([]*Buffer, len(comms))
	for i, c := range out {
		buffer, failed := newBuffer(c, comms[i], config)
		if failed != nil {
			err = failed
		}
		buffers[i] = buffer
	}
	if err != nil {
		for _, buffer := range buffers {
			_ = buffer.Close()
		}
		return nil, err
	}
	return buffers, nil
}

func newBuffer(c *C.deep_ep_buffer_t, comm *Comm, config BufferConfig) (*Buffer, error) {
	config.ExpertRank = append([]int32(nil), config.ExpertRank...)
	b := &Buffer{c: c, comm: comm, config: config}
	b.gate.name = "buffer"
	experts := make([]int32, config.NumExperts)
	var count C.size_t
	outcome := C.deepep_go_buffer_local_experts(c, int32Pointer(experts), C.size_t(len(experts)), &count)
	if err := failure(outcome); err != nil {
		C.deep_ep_buffer_destroy(c)
		return nil, err
	}
	b.localExperts = experts[:count:count]
	b.slabs, b.rows = config.capacity(comm.NumRanks(), len(b.localExperts))
	runtime.SetFinalizer(b, func(lost *Buffer) { _ = lost.Close() })
	return b, nil
}

// Comm is the comm the buffer was made with.
func (b *Buffer) Comm() *Comm { return b.comm }

// LocalExperts are the global ids of this rank's experts; the position is the local id.
func (b *Buffer) LocalExperts() []int32 { return append([]int32(nil), b.localExperts...) }

// Capacity is how many slabs a dispatch on this rank fills (1 in packed layouts) and how many rows fit in each: what
// outputs that the caller brings must have room for.
func (b *Buffer) Capacity() (slabs, rows int) { return b.slabs, b.rows }

// Barrier waits until every rank has called it: an operation of its own that moves no rows.
func (b *Buffer) Barrier(stream unsafe.Pointer) error {
	if err := b.gate.exclusive(); err != nil {
		return err
	}
	defer b.gate.leave()
	return failure(C.deepep_go_buffer_barrier(b.c, stream))
}

// SetTimeout changes the deadline of every later wait. It may run beside any other call.
func (b *Buffer) SetTimeout(d time.Duration) error {
	var n narrow
	ms := n.milliseconds("SetTimeout: d", d)
	if n.err != nil {
		return n.err
	}
	if err := b.gate.beside(); err != nil {
		return err
	}
	defer b.gate.leaveBeside()
	return failure(C.deepep_go_buffer_set_timeout(b.c, ms))
}

// Reset ends a failure: the surviving ranks agree on who is alive and on the next epoch. alive is nil for all ranks, or
// says for each rank whether it goes on, equal on all of them. Every surviving rank calls it, and it waits for them.
func (b *Buffer) Reset(alive []bool) error {
	if alive != nil && len(alive) != b.comm.NumRanks() {
		return invalid("Reset: alive has %d elements, but the group has %d ranks", len(alive), b.comm.NumRanks())
	}
	mask := make([]byte, len(alive))
	for rank, is := range alive {
		if is {
			mask[rank] = 1
		}
	}
	if err := b.gate.exclusive(); err != nil {
		return err
	}
	defer b.gate.leave()
	return failure(C.deepep_go_buffer_reset(b.c, bytePointer(mask)))
}

// Close gives the buffer's memory back and never waits for peers. Its handles become unusable and are still to be
// closed.
func (b *Buffer) Close() error {
	if b == nil {
		return nil
	}
	return b.gate.close(func() error {
		if err := failure(C.deepep_go_buffer_destroy(b.c)); err != nil {
			return err
		}
		runtime.SetFinalizer(b, nil)
		b.lostLock.Lock()
		defer b.lostLock.Unlock()
		for _, handle := range b.lost {
			C.deep_ep_handle_destroy(handle)
		}
		b.lost, b.gone = nil, true
		return nil
	})
}
