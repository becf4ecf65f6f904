package deepep

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Combine brings the expert outputs back to the tokens' ranks and sums them in a fixed order in FP32. It may be called
// any number of times after a dispatch; the first ends the reads of its rows. Every rank calls it, with the same hidden,
// type and mode.
func (h *Handle) Combine(in *CombineIn, out *CombineOut, stream unsafe.Pointer) error {
	if in == nil || out == nil {
		return invalid("Combine: in or out is nil")
	}
	return h.combine(in, out, stream)
}

// CombineSend is the first half of a combine: it returns when the rows are on their way.
func (h *Handle) CombineSend(in *CombineIn, stream unsafe.Pointer) error {
	if in == nil {
		return invalid("CombineSend: in is nil")
	}
	return h.combine(in, nil, stream)
}

// CombineRecv is the second half of a combine: it waits for the rows and sums them.
func (h *Handle) CombineRecv(out *CombineOut, stream unsafe.Pointer) error {
	if out == nil {
		return invalid("CombineRecv: out is nil")
	}
	return h.combine(nil, out, stream)
}

// combine makes the call for what is not nil.
func (h *Handle) combine(in *CombineIn, out *CombineOut, stream unsafe.Pointer) error {
	if err := h.exclusive(); err != nil {
		return err
	}
	defer h.b.gate.leave()
	var err error
	var steps C.int32_t
	var i CombineIn
	var o CombineOut
	combined := h.combined
	if in != nil {
		i = *in
		steps |= C.DEEPEP_GO_SEND
		if combined, err = i.fill(h); err != nil {
			return err
		}
	}
	if out != nil {
		o = *out
		steps |= C.DEEPEP_GO_RECV
		if err = o.fill(h, combined); err != nil {
			return err
		}
	}
	err = failure(C.deepep_go_handle_combine(steps, h.c, stream,
		&h.combineIn, &h.combineInAt, bytePointer(i.X.Data), floatPointer(i.RowWeights), floatPointer(i.TopkWeights),
		floatPointer(i.CarriedWeights),
		&h.combineOut, &h.combineOutAt, bytePointer(o.X.Data), bytePointer(o.Bias[0]), bytePointer(o.Bias[1]),
		floatPointer(o.CarriedWeights)))
	runtime.KeepAlive(h)
	if err != nil {
		return err
	}
	h.combined = combined
	return nil
}
