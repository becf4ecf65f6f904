package deepep

// #include "shim.h"
import "C"

// Backend says where the ranks of a group exchange their rows.
type Backend uint32

// The backends.
const (
	BackendAuto Backend = C.DEEP_EP_BACKEND_AUTO // this version: the host
	BackendHost Backend = C.DEEP_EP_BACKEND_HOST // shared memory of one machine
	BackendCUDA Backend = C.DEEP_EP_BACKEND_CUDA // this version: unsupported
)

// Layout says how a dispatch arranges the received rows. R ranks, T = MaxTokens, H elements per row.
type Layout uint32

// The layouts.
const (
	PackedByRank    Layout = C.DEEP_EP_PACKED_BY_RANK    // [N, H] ordered by (source rank, token)
	PackedByExpert  Layout = C.DEEP_EP_PACKED_BY_EXPERT  // [M, H] grouped by local expert at aligned offsets
	SlottedByRank   Layout = C.DEEP_EP_SLOTTED_BY_RANK   // [R, T, H], slab s from source s
	SlottedByExpert Layout = C.DEEP_EP_SLOTTED_BY_EXPERT // [local experts, R * T, H], slab l for local expert l
)

// Sync says how a rank makes sure that a window it writes into is no longer read. Same results, other waits.
type Sync uint32

// The ways to synchronise.
const (
	SyncAuto    Sync = C.DEEP_EP_SYNC_AUTO    // a barrier only where it is needed
	SyncAck     Sync = C.DEEP_EP_SYNC_ACK     // readers send a signal back
	SyncBarrier Sync = C.DEEP_EP_SYNC_BARRIER // every operation begins with a barrier
)

// DType is an element type. Rows: BF16, FP16, FP32, FP8E4M3, Opaque. Expert ids: Int32, Int64.
type DType uint32

// The element types.
const (
	DTypeNone DType = C.DEEP_EP_DTYPE_NONE
	BF16      DType = C.DEEP_EP_BF16
	FP16      DType = C.DEEP_EP_FP16
	FP32      DType = C.DEEP_EP_FP32
	FP8E4M3   DType = C.DEEP_EP_FP8_E4M3 // rows of it need scales
	Opaque    DType = C.DEEP_EP_OPAQUE   // bytes that are moved and never looked at
	Int32     DType = C.DEEP_EP_INT32
	Int64     DType = C.DEEP_EP_INT64
)

// Size is the number of bytes of one element; 0 for none.
func (d DType) Size() int {
	switch d {
	case FP8E4M3, Opaque:
		return 1
	case BF16, FP16:
		return 2
	case FP32, Int32:
		return 4
	case Int64:
		return 8
	}
	return 0
}

// ScaleDType is a kind of scales beside FP8 or opaque rows.
type ScaleDType uint32

// The kinds of scales.
const (
	ScaleNone        ScaleDType = C.DEEP_EP_SCALE_NONE
	ScaleFP32        ScaleDType = C.DEEP_EP_SCALE_FP32         // one float per block: amax / 448
	ScaleFP32Pow2    ScaleDType = C.DEEP_EP_SCALE_FP32_POW2    // one float per block, a power of two
	ScaleUE8M0Packed ScaleDType = C.DEEP_EP_SCALE_UE8M0_PACKED // four exponents in a little-endian int32
	ScaleOpaque      ScaleDType = C.DEEP_EP_SCALE_OPAQUE       // Block bytes per row, never looked at
)

// Operation is what a report's operation field names.
type Operation uint32

// The operations.
const (
	OperationNone     Operation = C.DEEP_EP_OPERATION_NONE
	OperationDispatch Operation = C.DEEP_EP_OPERATION_DISPATCH
	OperationCombine  Operation = C.DEEP_EP_OPERATION_COMBINE
	OperationBarrier  Operation = C.DEEP_EP_OPERATION_BARRIER
	OperationReset    Operation = C.DEEP_EP_OPERATION_RESET
)

// Phase is what a report's phase field names: the signal that was waited for.
type Phase uint32

// The phases.
const (
	PhaseNone   Phase = C.DEEP_EP_PHASE_NONE
	PhaseEnter  Phase = C.DEEP_EP_PHASE_ENTER  // entry barrier: the peer has begun the operation
	PhaseCounts Phase = C.DEEP_EP_PHASE_COUNTS // packed dispatch: the peer's counts
	PhaseData   Phase = C.DEEP_EP_PHASE_DATA   // the peer's rows, or its arrival at a barrier
	PhaseRead   Phase = C.DEEP_EP_PHASE_READ   // the peer has read (SyncAck)
)
