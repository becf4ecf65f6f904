package deepep

// #include "shim.h"
import "C"

// DispatchIn is what a rank sends in a dispatch. X.Rows is the number of its tokens, 0 to MaxTokens; hidden and types
// are the same on all ranks.
type DispatchIn struct {
	X      Rows   // [tokens, hidden]
	Scales Scales // of X; required for FP8 rows

	TopkIdx     []int32   // [tokens, NumTopk] global expert ids; -1: no expert
	TopkIdx64   []int64   // the same, where ids are 64 bits wide; one of the two
	TopkWeights []float32 // [tokens, NumTopk], or nil: all 1 (Cached: the earlier ones are kept)

	Cached bool // reuse the routing of the handle's last dispatch; no ids then

	// What crosses and arrives; DTypeNone: as X. FP8E4M3 with BF16, FP16 or FP32 rows: cast on the way.
	WireDType      DType
	WireScaleDType ScaleDType // of the cast; ScaleNone: ScaleFP32 for a cast
	WireScaleBlock int        // elements per scale of the cast; 0: 128

	NumTokens *int32 // nil, or read when the operation runs, clamped to 0 .. X.Rows
	NumSMs    int    // CUDA

	Device DispatchInDevice // CUDA
}

// DispatchInDevice has addresses of device memory for the fields of the same names.
type DispatchInDevice struct {
	TopkIdx      uintptr
	TopkIdxDType DType // Int32 or Int64
	TopkWeights  uintptr
	NumTokens    uintptr
}

// fill checks the input, writes it into the handle's structs and says what will be sent.
func (in *DispatchIn) fill(h *Handle) (shape, error) {
	var n narrow
	ids := in.X.Rows * h.b.config.NumTopk
	sent := shape{tokens: in.X.Rows, hidden: in.X.Hidden, dtype: in.WireDType}
	if sent.dtype == DTypeNone {
		sent.dtype = in.X.DType
	}
	sent.scales = Scales{DType: in.Scales.DType, Block: in.Scales.Block}
	if sent.dtype != in.X.DType {
		sent.scales = Scales{DType: in.WireScaleDType, Block: in.WireScaleBlock}
		if sent.scales.DType == ScaleNone {
			sent.scales.DType = ScaleFP32
		}
	}
	if in.TopkIdx != nil && in.TopkIdx64 != nil {
		return sent, invalid("DispatchIn: both TopkIdx and TopkIdx64 are set; give one")
	}
	if in.Cached && in.X.Rows == 0 && h.sent.tokens > 0 {
		return sent, invalid("DispatchIn: no rows, but the routing that is reused has %d", h.sent.tokens)
	}
	if err := firstError(
		in.X.check("DispatchIn.X", 1),
		in.Scales.check("DispatchIn.Scales", in.X.Rows, in.X.Hidden, 1),
		long("DispatchIn.TopkIdx", len(in.TopkIdx), ids),
		long("DispatchIn.TopkIdx64", len(in.TopkIdx64), ids),
		long("DispatchIn.TopkWeights", len(in.TopkWeights), ids),
	); err != nil {
		return sent, err
	}
	idType := Int32
	switch {
	case len(in.TopkIdx64) > 0:
		idType = Int64
	case len(in.TopkIdx) == 0 && in.Device.TopkIdx != 0:
		idType = in.Device.TopkIdxDType
	}
	h.dispatchIn = C.deep_ep_dispatch_in_t{
		struct_size:      C.sizeof_deep_ep_dispatch_in_t,
		num_sms:          n.int32("DispatchIn.NumSMs", in.NumSMs),
		num_tokens:       C.int64_t(in.X.Rows),
		hidden:           C.int64_t(in.X.Hidden),
		x:                in.X.c(),
		x_scales:         in.Scales.c(&n),
		topk_idx_dtype:   C.uint32_t(idType),
		wire_dtype:       C.uint32_t(in.WireDType),
		wire_scale_dtype: C.uint32_t(in.WireScaleDType),
		wire_scale_block: n.int32("DispatchIn.WireScaleBlock", in.WireScaleBlock),
	}
	if in.Cached {
		h.dispatchIn.flags = C.DEEP_EP_DISPATCH_CACHED
	}
	h.dispatchInAt = C.deepep_go_dispatch_in_addresses{
		x:            address(in.X.Data, in.X.Addr),
		x_scales:     address(in.Scales.Data, in.Scales.Addr),
		topk_idx:     C.uintptr_t(in.Device.TopkIdx),
		topk_weights: C.uintptr_t(in.Device.TopkWeights),
		num_tokens:   C.uintptr_t(in.Device.NumTokens),
	}
	return sent, n.err
}
