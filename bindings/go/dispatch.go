package deepep

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Dispatch sends each token's row to the ranks that own its experts and receives the rows sent here: a send and a
// receive in one call. Every rank calls it, with the same hidden, types and in-place choice.
//
// Bad expert ids and rows beyond the capacity are no error here: [Buffer.Report] tells. An error with a status below
// 40 comes before any peer was signalled, and the call may be repeated.
func (h *Handle) Dispatch(in *DispatchIn, out *DispatchOut, stream unsafe.Pointer) (*Received, error) {
	if in == nil {
		return nil, invalid("Dispatch: in is nil")
	}
	if out == nil {
		out = &DispatchOut{}
	}
	return h.dispatch(in, out, stream)
}

// DispatchSend is the first half of a dispatch: it returns when the rows are on their way. Up to MaxInFlight operations
// may be sent before one is received.
func (h *Handle) DispatchSend(in *DispatchIn, stream unsafe.Pointer) error {
	if in == nil {
		return invalid("DispatchSend: in is nil")
	}
	_, err := h.dispatch(in, nil, stream)
	return err
}

// DispatchRecv is the second half of a dispatch: it waits for the rows and hands them out.
func (h *Handle) DispatchRecv(out *DispatchOut, stream unsafe.Pointer) (*Received, error) {
	if out == nil {
		out = &DispatchOut{}
	}
	return h.dispatch(nil, out, stream)
}

// dispatch makes the call for what is not nil.
func (h *Handle) dispatch(in *DispatchIn, out *DispatchOut, stream unsafe.Pointer) (*Received, error) {
	if err := h.exclusive(); err != nil {
		return nil, err
	}
	defer h.b.gate.leave()
	var err error
	var steps C.int32_t
	var i DispatchIn
	var o DispatchOut
	sent := h.sent
	if in != nil {
		i = *in
		steps |= C.DEEPEP_GO_SEND
		if sent, err = i.fill(h); err != nil {
			return nil, err
		}
	}
	if out != nil {
		o = *out
		steps |= C.DEEPEP_GO_RECV
		if err = o.fill(h, sent); err != nil {
			return nil, err
		}
	}
	err = failure(C.deepep_go_handle_dispatch(steps, h.c, stream,
		&h.dispatchIn, &h.dispatchInAt, bytePointer(i.X.Data), bytePointer(i.Scales.Data), int32Pointer(i.TopkIdx),
		int64Pointer(i.TopkIdx64), floatPointer(i.TopkWeights), (*C.int32_t)(unsafe.Pointer(i.NumTokens)),
		&h.dispatchOut, &h.dispatchOutAt, bytePointer(o.X.Data), bytePointer(o.Scales.Data), int32Pointer(o.TopkIdx),
		floatPointer(o.TopkWeights), int64Pointer(o.RowSource), int32Pointer(o.RankCounts),
		int32Pointer(o.ExpertCounts), int64Pointer(o.ExpertOffsets), int64Pointer(o.TrueRows),
		int32Pointer(o.SourceRanges)))
	runtime.KeepAlive(h)
	if err != nil {
		return nil, err
	}
	h.sent = sent
	if out == nil {
		return nil, nil
	}
	return h.arrived(&o), nil
}
