package deepep

// #include "shim.h"
import "C"

// CombineIn is what a rank gives to a combine: one row for each row it received, laid out as the dispatch was.
type CombineIn struct {
	// BF16, FP16 or FP32 rows; slotted layouts: slabs, see [Rows.Slabs]. Hidden 0: that of the dispatch. In place: what
	// Handle.CombineInput returned, or only its DType.
	X Rows

	Exact             bool // every expert row crosses, for one FP32 sum that is the same for every number of ranks
	WeightsOfDispatch bool // multiply by the weights of the handle's last dispatch

	RowWeights     []float32 // nil, or for each row of the dispatch's output: multiplied in on the expert's rank
	TopkWeights    []float32 // nil, or [tokens, NumTopk]: multiplied in on the token's rank; Exact only
	CarriedWeights []float32 // nil, or like Received.TopkWeights: brought back, not multiplied

	NumSMs int // CUDA

	Device CombineInDevice // CUDA
}

// CombineInDevice has addresses of device memory for the fields of the same names.
type CombineInDevice struct {
	RowWeights     uintptr
	TopkWeights    uintptr
	CarriedWeights uintptr
}

// fill checks the input, writes it into the handle's structs and says what will be combined.
func (in *CombineIn) fill(h *Handle) (shape, error) {
	var n narrow
	b := h.b
	x := in.X
	if x.Hidden == 0 {
		x.Hidden = h.sent.hidden
	}
	if x.Data != nil && x.Addr == 0 && x.Rows < h.present {
		return shape{}, invalid("CombineIn.X has %d rows, but the dispatch brought %d", x.Rows, h.present)
	}
	combined := shape{tokens: h.sent.tokens, hidden: x.Hidden, dtype: x.DType}
	l := b.lengths(h.received)
	if err := firstError(
		x.check("CombineIn.X", b.slabs),
		long("CombineIn.RowWeights", len(in.RowWeights), l.perRow),
		long("CombineIn.TopkWeights", len(in.TopkWeights), h.sent.tokens*b.config.NumTopk),
		long("CombineIn.CarriedWeights", len(in.CarriedWeights), l.ids),
	); err != nil {
		return combined, err
	}
	h.combineIn = C.deep_ep_combine_in_t{
		struct_size: C.sizeof_deep_ep_combine_in_t,
		num_sms:     n.int32("CombineIn.NumSMs", in.NumSMs),
		hidden:      C.int64_t(in.X.Hidden),
		x:           in.X.c(),
	}
	if in.Exact {
		h.combineIn.flags |= C.DEEP_EP_COMBINE_EXACT
	}
	if in.WeightsOfDispatch {
		h.combineIn.flags |= C.DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH
	}
	h.combineInAt = C.deepep_go_combine_in_addresses{
		x:               address(in.X.Data, in.X.Addr),
		row_weights:     C.uintptr_t(in.Device.RowWeights),
		topk_weights:    C.uintptr_t(in.Device.TopkWeights),
		carried_weights: C.uintptr_t(in.Device.CarriedWeights),
	}
	return combined, n.err
}
