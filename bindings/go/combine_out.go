package deepep

// #include "shim.h"
import "C"

import "unsafe"

// CombineOut says where a combine's sums go; all of it is the caller's memory.
type CombineOut struct {
	X    Rows      // [tokens, hidden]; Hidden may be 0. DType: none, or that of the combined rows
	Bias [2][]byte // nil, or rows like X with the same stride: the sum starts from Bias[0] + Bias[1]

	CarriedWeights []float32 // nil, or [tokens, NumTopk]: sum over ranks of the carried weights; 0 where the id is -1

	Device CombineOutDevice // CUDA
}

// CombineOutDevice has addresses of device memory for the fields of the same names.
type CombineOutDevice struct {
	Bias           [2]uintptr
	CarriedWeights uintptr
}

// fill checks the output and writes it into the handle's structs. `combined` is what is to arrive.
func (out *CombineOut) fill(h *Handle, combined shape) error {
	x := out.X
	x.Hidden = combined.hidden
	if x.DType == DTypeNone {
		x.DType = combined.dtype
	}
	if x.Data != nil && x.Rows < combined.tokens {
		return invalid("CombineOut.X has %d rows, but there are %d tokens", x.Rows, combined.tokens)
	}
	bias := [2]Rows{x, x}
	for i := range bias {
		bias[i].Data, bias[i].Addr, bias[i].Rows = out.Bias[i], 0, combined.tokens
	}
	if err := firstError(
		x.check("CombineOut.X", 1),
		bias[0].check("CombineOut.Bias[0]", 1),
		bias[1].check("CombineOut.Bias[1]", 1),
		long("CombineOut.CarriedWeights", len(out.CarriedWeights), combined.tokens*h.b.config.NumTopk),
	); err != nil {
		return err
	}
	h.combineOut = C.deep_ep_combine_out_t{struct_size: C.sizeof_deep_ep_combine_out_t, x: out.X.c()}
	h.combineOutAt = C.deepep_go_combine_out_addresses{
		x:               address(out.X.Data, out.X.Addr),
		bias0:           address(out.Bias[0], out.Device.Bias[0]),
		bias1:           address(out.Bias[1], out.Device.Bias[1]),
		carried_weights: C.uintptr_t(out.Device.CarriedWeights),
	}
	return nil
}

// CombineInput says where the rows of the handle's next combine may be written in place, and reserves that memory until
// then. Every rank calls it or none, at the same place in the order of calls.
func (h *Handle) CombineInput(dtype DType, stream unsafe.Pointer) (Rows, error) {
	if err := h.exclusive(); err != nil {
		return Rows{}, err
	}
	defer h.b.gate.leave()
	x := C.deep_ep_rows_t{dtype: C.uint32_t(dtype)}
	if err := failure(C.deepep_go_handle_combine_input(h.c, &x, stream)); err != nil {
		return Rows{}, err
	}
	return rowsAt(&x, Rows{}, h.sent.hidden, h.b.slabs, h.b.comm.host()), nil
}
