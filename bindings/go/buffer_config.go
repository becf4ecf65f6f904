package deepep

// #include "shim.h"
import "C"

import "time"

// BufferConfig has the capacities of a buffer, in rows and bytes; types and hidden belong to each operation. It is equal
// on all ranks. Fields left at 0 are chosen by the library; MaxTokens, MaxRowBytes, NumExperts and NumTopk must be set.
type BufferConfig struct {
	Layout Layout
	Sync   Sync

	MaxTokens          int // tokens a rank sends in one operation
	MaxRecvRows        int // packed layouts: rows a rank receives; 0: all that can come. Rows beyond are dropped
	MaxExpertRows      int // PackedByExpert: rows after expansion and alignment; 0: all that can come
	MaxRowBytes        int // largest row of a dispatch as it crosses, a multiple of 16
	MaxScaleBytes      int // largest scales of a row as they cross; 0: no scales
	MaxCombineRowBytes int // largest row of a combine; 0: MaxRowBytes

	NumExperts      int
	NumTopk         int     // experts per token, 1 to 32
	ExpertAlignment int     // PackedByExpert: each expert's rows start at a multiple of it; 0: 1
	ExpertRank      []int32 // nil for an even split, or the rank that owns each expert

	DispatchWindows int // 0: MaxInFlight (packed), twice that (slotted)
	CombineWindows  int // likewise
	MaxInFlight     int // operations sent and not yet received, the newest included; 0: 1
	NumSMs          int // CUDA
	NumStages       int // CUDA

	Timeout      time.Duration // how long any wait may last; 0: 30 s
	FirstTimeout time.Duration // the same for creation and first operations; 0: the larger of 120 s and Timeout

	RefuseBadIDs bool // refuse a dispatch with a bad expert id instead of treating the id as -1; host backend
	Trace        bool // record times for Buffer.Trace
}

func (config *BufferConfig) c() (C.deep_ep_buffer_config_t, error) {
	var n narrow
	var c C.deep_ep_buffer_config_t
	if err := failure(C.deepep_go_buffer_config_init(&c)); err != nil {
		return c, err
	}
	c.layout = C.uint32_t(config.Layout)
	c.sync = C.uint32_t(config.Sync)
	c.max_tokens = C.int64_t(config.MaxTokens)
	c.max_recv_rows = C.int64_t(config.MaxRecvRows)
	c.max_expert_rows = C.int64_t(config.MaxExpertRows)
	c.max_row_bytes = C.int64_t(config.MaxRowBytes)
	c.max_scale_bytes = C.int64_t(config.MaxScaleBytes)
	c.max_combine_row_bytes = C.int64_t(config.MaxCombineRowBytes)
	c.num_experts = n.int32("BufferConfig.NumExperts", config.NumExperts)
	c.num_topk = n.int32("BufferConfig.NumTopk", config.NumTopk)
	c.expert_alignment = n.int32("BufferConfig.ExpertAlignment", config.ExpertAlignment)
	c.dispatch_windows = n.int32("BufferConfig.DispatchWindows", config.DispatchWindows)
	c.combine_windows = n.int32("BufferConfig.CombineWindows", config.CombineWindows)
	c.max_in_flight = n.int32("BufferConfig.MaxInFlight", config.MaxInFlight)
	c.num_sms = n.int32("BufferConfig.NumSMs", config.NumSMs)
	c.num_stages = n.int32("BufferConfig.NumStages", config.NumStages)
	c.timeout_ms = n.milliseconds("BufferConfig.Timeout", config.Timeout)
	c.first_timeout_ms = n.milliseconds("BufferConfig.FirstTimeout", config.FirstTimeout)
	if config.RefuseBadIDs {
		c.flags |= C.DEEP_EP_BUFFER_REFUSE_BAD_IDS
	}
	if config.Trace {
		c.flags |= C.DEEP_EP_BUFFER_TRACE
	}
	return c, firstError(n.err, long("BufferConfig.ExpertRank", len(config.ExpertRank), config.NumExperts))
}

// capacity is how many slabs a dispatch on the given rank fills and how many rows fit in each, as deep_ep.h says it.
func (config *BufferConfig) capacity(numRanks, localExperts int) (slabs, rows int) {
	all := numRanks * config.MaxTokens
	received := config.MaxRecvRows
	if received == 0 {
		received = all
	}
	switch config.Layout {
	case SlottedByRank:
		return numRanks, config.MaxTokens
	case SlottedByExpert:
		return localExperts, all
	case PackedByExpert:
		if config.MaxExpertRows != 0 {
			return 1, config.MaxExpertRows
		}
		most := config.mostLocal(numRanks)
		pairs := received * most
		if config.NumTopk < most {
			pairs = received * config.NumTopk
		}
		alignment := config.ExpertAlignment
		if alignment == 0 {
			alignment = 1
		}
		return 1, (pairs + most*(alignment-1)) / alignment * alignment
	}
	return 1, received
}

// mostLocal is the largest number of experts on one rank.
func (config *BufferConfig) mostLocal(numRanks int) int {
	if len(config.ExpertRank) == 0 {
		return (config.NumExperts + numRanks - 1) / numRanks
	}
	counts := make([]int, numRanks)
	most := 0
	for _, rank := range config.ExpertRank[:config.NumExperts] {
		counts[rank]++
		if counts[rank] > most {
			most = counts[rank]
		}
	}
	return most
}
