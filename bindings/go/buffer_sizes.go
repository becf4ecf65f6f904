package deepep

// #include "shim.h"
import "C"

// BufferSizes are the exact bytes a buffer takes on one rank, allocator rounding included.
type BufferSizes struct {
	DispatchWindow int64 // all dispatch windows together
	CombineWindow  int64 // all combine windows together
	Signals        int64 // signal words, counts and the like
	LocalOutputs   int64 // by-expert layouts: areas that peers do not see
	Handle         int64 // what each handle adds; not part of the totals
	PinnedHost     int64 // CUDA
	TotalSymmetric int64 // memory mapped by all ranks
	TotalDevice    int64 // what creating the buffer allocates
	Slabs          int64 // slabs of received rows: one (packed), or one per rank or local expert
	SlabRows       int64 // rows the library's own memory holds in each
}

// BufferSize computes what a buffer would take on this rank, without allocating.
func (c *Comm) BufferSize(config BufferConfig) (BufferSizes, error) {
	cc, err := config.c()
	if err != nil {
		return BufferSizes{}, err
	}
	if err := c.gate.beside(); err != nil {
		return BufferSizes{}, err
	}
	defer c.gate.leaveBeside()
	out := C.deep_ep_buffer_sizes_t{struct_size: C.sizeof_deep_ep_buffer_sizes_t}
	if err := failure(C.deepep_go_buffer_size(c.c, &cc, int32Pointer(config.ExpertRank), &out)); err != nil {
		return BufferSizes{}, err
	}
	return BufferSizes{
		DispatchWindow: int64(out.dispatch_window),
		CombineWindow:  int64(out.combine_window),
		Signals:        int64(out.signals),
		LocalOutputs:   int64(out.local_outputs),
		Handle:         int64(out.handle),
		PinnedHost:     int64(out.pinned_host),
		TotalSymmetric: int64(out.total_symmetric),
		TotalDevice:    int64(out.total_device),
		Slabs:          int64(out.slabs),
		SlabRows:       int64(out.slab_rows),
	}, nil
}
