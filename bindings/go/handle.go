package deepep

// #include "shim.h"
import "C"

import (
	"runtime"
	"time"
	"unsafe"
)

// Handle is the routing of one dispatch: what its combine needs and a cached dispatch reuses. It belongs to a buffer,
// and its calls need exclusive use of the buffer.
type Handle struct {
	b      *Buffer
	c      *C.deep_ep_handle_t
	closed bool // under the buffer's exclusive use

	// What the binding must know to check the lengths of slices.
	sent     shape // by the last dispatch
	received int   // rows that fit in a slab of the last receive
	present  int   // rows in its fullest slab
	combined shape // by the last combine

	// The structs of the call that is running; here, so that a call allocates nothing.
	dispatchIn    C.deep_ep_dispatch_in_t
	dispatchInAt  C.deepep_go_dispatch_in_addresses
	dispatchOut   C.deep_ep_dispatch_out_t
	dispatchOutAt C.deepep_go_dispatch_out_addresses
	combineIn     C.deep_ep_combine_in_t
	combineInAt   C.deepep_go_combine_in_addresses
	combineOut    C.deep_ep_combine_out_t
	combineOutAt  C.deepep_go_combine_out_addresses
}

// shape is what the rows of one operation are.
type shape struct {
	tokens int
	hidden int
	dtype  DType
	scales Scales // type and block only
}

// NewHandle makes a handle, with memory for the largest routing of the buffer.
func (b *Buffer) NewHandle() (*Handle, error) {
	if err := b.gate.exclusive(); err != nil {
		return nil, err
	}
	defer b.gate.leave()
	h := &Handle{b: b}
	var out *C.deep_ep_handle_t
	if err := failure(C.deepep_go_handle_create(b.c, &out)); err != nil {
		return nil, err
	}
	h.c = out
	// To destroy a handle may count as the release of its rows, which has its place in the order of calls on all ranks:
	// not here, but when the buffer is no more.
	runtime.SetFinalizer(h, func(lost *Handle) { lost.b.lose(lost.c) })
	return h, nil
}

func (b *Buffer) lose(handle *C.deep_ep_handle_t) {
	b.lostLock.Lock()
	defer b.lostLock.Unlock()
	if b.gone {
		C.deep_ep_handle_destroy(handle)
	} else {
		b.lost = append(b.lost, handle)
	}
}

// exclusive begins a call on the handle; b.gate.leave ends it.
func (h *Handle) exclusive() error {
	if err := h.b.gate.exclusive(); err != nil {
		return err
	}
	if h.closed {
		h.b.gate.leave()
		return &Error{Status: StatusInvalidState, Msg: "the handle is closed"}
	}
	return nil
}

// WaitCounts waits until the numbers of the handle's last dispatch are known to the host: rows present for each local
// expert, and rows present (by rank) or the end of the last expert (PackedByExpert). timeout 0: the buffer's.
func (h *Handle) WaitCounts(timeout time.Duration) (experts []int64, rows int64, err error) {
	var n narrow
	ms := n.milliseconds("WaitCounts: timeout", timeout)
	if n.err != nil {
		return nil, 0, n.err
	}
	if err := h.exclusive(); err != nil {
		return nil, 0, err
	}
	defer h.b.gate.leave()
	experts = make([]int64, len(h.b.localExperts))
	var total C.int64_t
	if err := failure(C.deepep_go_handle_wait_counts(h.c, int64Pointer(experts), &total, ms)); err != nil {
		return nil, 0, err
	}
	return experts, int64(total), nil
}

// Release says that the received rows are no longer read, without a combine. Called on every rank, at the same place in
// the order of calls.
func (h *Handle) Release(stream unsafe.Pointer) error {
	if err := h.exclusive(); err != nil {
		return err
	}
	defer h.b.gate.leave()
	return failure(C.deepep_go_handle_release(h.c, stream))
}

// Close gives the handle back. Open rows count as released here, so it then has its place in the order of calls on all
// ranks.
func (h *Handle) Close() error {
	if h == nil {
		return nil
	}
	gate := &h.b.gate
	if !gate.use.TryLock() { // also when the buffer is closed
		return &Error{Status: StatusConcurrentUse, Msg: "another call uses the buffer; close the handle afterwards"}
	}
	defer gate.leave()
	if h.closed {
		return nil
	}
	if err := failure(C.deepep_go_handle_destroy(h.c)); err != nil {
		return err
	}
	runtime.SetFinalizer(h, nil)
	h.closed = true
	return nil
}
