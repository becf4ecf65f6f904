package deepep

// #include "shim.h"
import "C"

import "unsafe"

// DispatchOut says where a dispatch arrives. What is left zero is in place, in memory of the library; a nil DispatchOut
// leaves all of it. No field means "not wanted".
type DispatchOut struct {
	X      Rows   // Hidden may be 0; Rows below the buffer's capacity lowers the capacity of this call
	Scales Scales // as many rows as X; in place, ColStride other than 0 and 4 asks for column-major
	Arrays
	Device DeviceArrays
}

// Received is what a dispatch brought. Slices that the caller passed are the caller's, others lie in memory of the
// library: X and Scales hold until the handle's combine, release or close, the arrays until its next dispatch or close.
// On a device the Addr fields and Device are set and the slices that the caller did not pass are nil.
type Received struct {
	X      Rows
	Scales Scales
	Arrays
	Device DeviceArrays
}

// Arrays say what the rows of a dispatch are. S slabs (1 in packed layouts) of N rows each, as many as fit; L local
// experts, R ranks, K = NumTopk.
type Arrays struct {
	TopkIdx       []int32   // by rank: [S, N, K] local expert ids; by expert: [S, N] local expert. -1: none, or no row
	TopkWeights   []float32 // like TopkIdx; 0 where the id is -1
	RowSource     []int64   // [S, N] source rank * MaxTokens + token; -1: no row
	RankCounts    []int32   // [R] rows present from each source
	ExpertCounts  []int32   // [L] rows present for each local expert, pads not counted
	ExpertOffsets []int64   // PackedByExpert: [L + 1] aligned start of each expert's rows, then the end of the last
	TrueRows      []int64   // [2] rows that were sent to this rank, and rows after expansion
	SourceRanges  []int32   // SlottedByExpert: [L, R, 2] begin and count of each source's rows in a slab
}

// DeviceArrays has addresses of device memory for the fields of the same names.
type DeviceArrays struct {
	TopkIdx       uintptr
	TopkWeights   uintptr
	RowSource     uintptr
	RankCounts    uintptr
	ExpertCounts  uintptr
	ExpertOffsets uintptr
	TrueRows      uintptr
	SourceRanges  uintptr
}

// lengths are the elements of each array when n rows fit in a slab.
type lengths struct {
	perRow, ids, ranks, experts, offsets, trueRows, ranges int
}

func (b *Buffer) lengths(n int) lengths {
	local, ranks := len(b.localExperts), b.comm.NumRanks()
	l := lengths{perRow: b.slabs * n, ids: b.slabs * n, ranks: ranks, experts: local, trueRows: 2}
	switch b.config.Layout {
	case PackedByRank, SlottedByRank:
		l.ids *= b.config.NumTopk
	case PackedByExpert:
		l.offsets = local + 1
	case SlottedByExpert:
		l.ranges = local * ranks * 2
	}
	return l
}

// fill checks the output and writes it into the handle's structs. `sent` is what is to arrive.
func (out *DispatchOut) fill(h *Handle, sent shape) error {
	b := h.b
	x, scales := out.X, out.Scales
	x.Hidden = sent.hidden
	if x.DType == DTypeNone {
		x.DType = sent.dtype
	}
	if scales.DType == ScaleNone {
		scales.DType, scales.Block = sent.scales.DType, sent.scales.Block
	}
	fits, inSlab := b.rows, b.rows
	if x.Data != nil || x.Addr != 0 {
		inSlab = x.Rows
	}
	if inSlab < fits {
		fits = inSlab
	}
	l := b.lengths(fits)
	if err := firstError(
		x.check("DispatchOut.X", b.slabs),
		scales.check("DispatchOut.Scales", inSlab, sent.hidden, b.slabs),
		long("DispatchOut.TopkIdx", len(out.TopkIdx), l.ids),
		long("DispatchOut.TopkWeights", len(out.TopkWeights), l.ids),
		long("DispatchOut.RowSource", len(out.RowSource), l.perRow),
		long("DispatchOut.RankCounts", len(out.RankCounts), l.ranks),
		long("DispatchOut.ExpertCounts", len(out.ExpertCounts), l.experts),
		long("DispatchOut.ExpertOffsets", len(out.ExpertOffsets), l.offsets),
		long("DispatchOut.TrueRows", len(out.TrueRows), l.trueRows),
		long("DispatchOut.SourceRanges", len(out.SourceRanges), l.ranges),
	); err != nil {
		return err
	}
	var n narrow
	h.dispatchOut = C.deep_ep_dispatch_out_t{
		struct_size: C.sizeof_deep_ep_dispatch_out_t, x: out.X.c(), scales: out.Scales.c(&n),
	}
	h.dispatchOutAt = C.deepep_go_dispatch_out_addresses{
		x:              address(out.X.Data, out.X.Addr),
		scales:         address(out.Scales.Data, out.Scales.Addr),
		topk_idx:       C.uintptr_t(out.Device.TopkIdx),
		topk_weights:   C.uintptr_t(out.Device.TopkWeights),
		row_source:     C.uintptr_t(out.Device.RowSource),
		rank_counts:    C.uintptr_t(out.Device.RankCounts),
		expert_counts:  C.uintptr_t(out.Device.ExpertCounts),
		expert_offsets: C.uintptr_t(out.Device.ExpertOffsets),
		true_rows:      C.uintptr_t(out.Device.TrueRows),
		source_ranges:  C.uintptr_t(out.Device.SourceRanges),
	}
	return n.err
}

// arrived is what the library says came, once a call has filled the handle's struct.
func (h *Handle) arrived(out *DispatchOut) *Received {
	b, c := h.b, &h.dispatchOut
	host := b.comm.host()
	rows := int(c.x.rows)
	if rows > b.rows {
		rows = b.rows
	}
	h.received = rows
	l := b.lengths(rows)
	r := &Received{
		X:      rowsAt(&c.x, out.X, h.sent.hidden, b.slabs, host),
		Scales: scalesAt(&c.scales, out.Scales, rows, h.sent.hidden, b.slabs, host),
		Arrays: out.Arrays,
		Device: out.Device,
	}
	at(&r.TopkIdx, &r.Device.TopkIdx, unsafe.Pointer(c.topk_idx), l.ids, host)
	at(&r.TopkWeights, &r.Device.TopkWeights, unsafe.Pointer(c.topk_weights), l.ids, host)
	at(&r.RowSource, &r.Device.RowSource, unsafe.Pointer(c.row_source), l.perRow, host)
	at(&r.RankCounts, &r.Device.RankCounts, unsafe.Pointer(c.rank_counts), l.ranks, host)
	at(&r.ExpertCounts, &r.Device.ExpertCounts, unsafe.Pointer(c.expert_counts), l.experts, host)
	at(&r.ExpertOffsets, &r.Device.ExpertOffsets, unsafe.Pointer(c.expert_offsets), l.offsets, host)
	at(&r.TrueRows, &r.Device.TrueRows, unsafe.Pointer(c.true_rows), l.trueRows, host)
	at(&r.SourceRanges, &r.Device.SourceRanges, unsafe.Pointer(c.source_ranges), l.ranges, host)
	h.present = r.fullest(b.config.Layout)
	return r
}

// fullest is the number of rows in the fullest slab, as far as the host can see it.
func (r *Received) fullest(layout Layout) (rows int) {
	counts := r.RankCounts
	switch layout {
	case PackedByRank:
		for _, n := range counts {
			rows += int(n)
		}
		return rows
	case PackedByExpert:
		if n := len(r.ExpertOffsets); n > 0 {
			rows = int(r.ExpertOffsets[n-1])
		}
		return rows
	case SlottedByExpert:
		counts = r.ExpertCounts
	}
	for _, n := range counts {
		if int(n) > rows {
			rows = int(n)
		}
	}
	return rows
}

// at makes an array of the library visible; null leaves the caller's.
func at[T any](slice *[]T, addr *uintptr, p unsafe.Pointer, n int, host bool) {
	switch {
	case p == nil:
	case host && n > 0:
		*slice = unsafe.Slice((*T)(p), n)
	case host:
		*slice = nil
	default:
		*addr = uintptr(p)
	}
}
