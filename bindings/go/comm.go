package deepep

// #include "shim.h"
import "C"

import (
	"runtime"
	"runtime/cgo"
	"time"
	"unsafe"
)

// CommConfig says who this rank is.
type CommConfig struct {
	Rank     int // 0 <= Rank < NumRanks; ignored by JoinLocal
	NumRanks int // 1 to 1024
	Backend  Backend
	Device   int           // CUDA device ordinal
	Timeout  time.Duration // until the rendezvous gives up; 0: 60 s
}

// Comm is one rank's membership of a group of ranks.
type Comm struct {
	gate   gate
	c      *C.deep_ep_comm_t
	config CommConfig
}

// Join joins a group as one rank and waits until all ranks have come, each from a goroutine or process of its own.
func Join(id UniqueID, config CommConfig) (*Comm, error) {
	c, err := config.c()
	if err != nil {
		return nil, err
	}
	c.unique_id = *(*C.deep_ep_unique_id_t)(unsafe.Pointer(&id))
	return join(config, c, 0)
}

// JoinWith joins a group whose ranks meet through the caller's all-gather.
func JoinWith(gather Allgather, config CommConfig) (*Comm, error) {
	if gather == nil {
		return nil, invalid("JoinWith: gather is nil")
	}
	c, err := config.c()
	if err != nil {
		return nil, err
	}
	g := &gathering{gather: gather, numRanks: config.NumRanks}
	handle := cgo.NewHandle(g)
	defer handle.Delete()
	comm, err := join(config, c, handle)
	if e, ok := err.(*Error); ok {
		e.cause = g.err
	}
	return comm, err
}

func join(config CommConfig, c C.deep_ep_comm_config_t, gather cgo.Handle) (*Comm, error) {
	var out *C.deep_ep_comm_t
	if err := failure(C.deepep_go_comm_create(&c, C.uintptr_t(gather), &out)); err != nil {
		return nil, err
	}
	return newComm(out, config), nil
}

// JoinLocal makes all ranks of a group in this process at once, in rank order. devices is nil, or has a CUDA device for
// each rank.
func JoinLocal(config CommConfig, devices []int32) ([]*Comm, error) {
	c, err := config.c()
	if err != nil {
		return nil, err
	}
	if err := long("JoinLocal: devices", len(devices), config.NumRanks); err != nil {
		return nil, err
	}
	if config.NumRanks < 1 || config.NumRanks > 1024 {
		return nil, invalid("JoinLocal: NumRanks is %d; it must be from 1 to 1024", config.NumRanks)
	}
	out := make([]*C.deep_ep_comm_t, config.NumRanks)
	if err := failure(C.deepep_go_comm_create_local(&c, int32Pointer(devices), &out[0])); err != nil {
		return nil, err
	}
	comms := make([]*Comm, len(out))
	for rank := range out {
		config.Rank = rank
		if len(devices) > 0 {
			config.Device = int(devices[rank])
		}
		comms[rank] = newComm(out[rank], config)
	}
	return comms, nil
}

func newComm(c *C.deep_ep_comm_t, config CommConfig) *Comm {
	comm := &Comm{c: c, config: config}
	comm.gate.name = "comm"
	runtime.SetFinalizer(comm, func(lost *Comm) { _ = lost.Close() })
	return comm
}

// Rank is this rank's number.
func (c *Comm) Rank() int { return c.config.Rank }

// NumRanks is the number of ranks of the group.
func (c *Comm) NumRanks() int { return c.config.NumRanks }

// Abort ends the group's work on every rank: waits everywhere end with ErrAborted naming this rank. The reason, cut at
// 128 bytes, is shown by the other ranks' errors. It may run beside any other call.
func (c *Comm) Abort(reason string) error {
	if err := c.gate.beside(); err != nil {
		return err
	}
	defer c.gate.leaveBeside()
	text := C.CString(reason)
	defer C.free(unsafe.Pointer(text))
	return failure(C.deepep_go_comm_abort(c.c, text))
}

// Close leaves the group. Buffers of the comm stay usable until they are closed.
func (c *Comm) Close() error {
	if c == nil {
		return nil
	}
	return c.gate.close(func() error {
		runtime.SetFinalizer(c, nil)
		return failure(C.deepep_go_comm_destroy(c.c))
	})
}

// host says whether memory of the library can be read by Go.
func (c *Comm) host() bool { return c.config.Backend != BackendCUDA }

func (config CommConfig) c() (C.deep_ep_comm_config_t, error) {
	var n narrow
	var c C.deep_ep_comm_config_t
	if err := failure(C.deepep_go_comm_config_init(&c)); err != nil {
		return c, err
	}
	c.rank = n.int32("CommConfig.Rank", config.Rank)
	c.num_ranks = n.int32("CommConfig.NumRanks", config.NumRanks)
	c.backend = C.uint32_t(config.Backend)
	c.device = n.int32("CommConfig.Device", config.Device)
	c.timeout_ms = n.milliseconds("CommConfig.Timeout", config.Timeout)
	return c, n.err
}
