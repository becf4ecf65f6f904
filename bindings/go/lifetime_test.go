package deepep

import (
	"runtime"
	"testing"
	"time"
	"unsafe"
)

func TestClose(t *testing.T) {
	comms, err := JoinLocal(CommConfig{NumRanks: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	buffers, err := NewBuffersLocal(comms, BufferConfig{MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2})
	if err != nil {
		t.Fatal(err)
	}
	comm, b := comms[0], buffers[0]
	h, err := b.NewHandle()
	if err != nil {
		t.Fatal(err)
	}
	// Any order, and more than once.
	for i := 0; i < 2; i++ {
		for _, object := range []interface{ Close() error }{comm, b, h, (*Comm)(nil), (*Buffer)(nil), (*Handle)(nil)} {
			if err := object.Close(); err != nil {
				t.Errorf("%T, time %d: %v", object, i, err)
			}
		}
	}
	_, err = b.NewHandle()
	wantError(t, "NewHandle", err, ErrInvalidState, "buffer is closed")
	_, err = b.Statistics()
	wantError(t, "Statistics", err, ErrInvalidState, "buffer is closed")
	_, err = h.Dispatch(&DispatchIn{}, nil, nil)
	wantError(t, "Dispatch", err, ErrInvalidState, "closed")
	_, err = comm.NewBuffer(BufferConfig{})
	wantError(t, "NewBuffer", err, ErrInvalidState, "comm is closed")
	wantError(t, "Abort", comm.Abort("late"), ErrInvalidState, "comm is closed")
}

// TestOneCallAtATime: a second call on a buffer, and its Close, are refused while one runs; others are not.
func TestOneCallAtATime(t *testing.T) {
	config := BufferConfig{MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2, Timeout: testTimeout}
	buffers := localBuffers(t, 2, config)
	h, err := buffers[0].NewHandle()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- buffers[0].Barrier(nil) }()
	for buffers[0].gate.use.TryLock() { // until the barrier has it
		buffers[0].gate.use.Unlock()
		time.Sleep(time.Millisecond)
	}
	wantError(t, "Release", h.Release(nil), ErrConcurrentUse)
	wantError(t, "handle Close", h.Close(), ErrConcurrentUse)
	wantError(t, "buffer Close", buffers[0].Close(), ErrConcurrentUse)
	if _, err := buffers[0].Report(); err != nil {
		t.Error(err)
	}
	if err := buffers[1].Barrier(nil); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// TestLost: objects without a Close go away quietly, handles together with their buffer.
func TestLost(t *testing.T) {
	config := BufferConfig{MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2}
	comms, err := JoinLocal(CommConfig{NumRanks: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	func() {
		buffers, err := NewBuffersLocal(comms, config)
		if err != nil {
			t.Fatal(err)
		}
		b := buffers[0]
		h, err := b.NewHandle()
		if err != nil {
			t.Fatal(err)
		}
		in := DispatchIn{X: RowsOf(FP32, Aligned[float32](16), 16), TopkIdx: []int32{0, 1}}
		if _, err := h.Dispatch(&in, nil, nil); err != nil {
			t.Fatal(err)
		}
		runtime.SetFinalizer(b, nil)
		runtime.SetFinalizer(b, func(lost *Buffer) {
			if lost.gate.closed || len(lost.lost) != 1 {
				t.Errorf("the buffer went before its handle: closed %v, %d handles", lost.gate.closed, len(lost.lost))
			}
			if err := lost.Close(); err != nil {
				t.Errorf("the lost buffer: %v", err)
			}
			close(gone)
		})
	}()
	for i := 0; ; i++ {
		runtime.GC()
		select {
		case <-gone:
			if err := comms[0].Close(); err != nil {
				t.Error(err)
			}
			return
		case <-time.After(10 * time.Millisecond):
			if i > 500 {
				t.Fatal("the buffer was not collected")
			}
		}
	}
}

// TestCycles makes and closes many groups.
func TestCycles(t *testing.T) {
	for i := 0; i < 20; i++ {
		inRanksOfNewGroup(t, 2, func(b *Buffer) error {
			h, err := b.NewHandle()
			if err != nil {
				return err
			}
			return firstError(b.Barrier(nil), h.Close())
		})
	}
}

func inRanksOfNewGroup(t *testing.T, ranks int, body func(b *Buffer) error) {
	t.Helper()
	comms, err := JoinLocal(CommConfig{NumRanks: ranks}, nil)
	if err != nil {
		t.Fatal(err)
	}
	inRanks(t, ranks, func(rank int) error {
		b, err := comms[rank].NewBuffer(BufferConfig{MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2})
		if err != nil {
			return err
		}
		return firstError(body(b), b.Close(), comms[rank].Close())
	})
}

func TestStatistics(t *testing.T) {
	config := BufferConfig{MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2, Trace: true}
	b, h := one(t, config)
	in := DispatchIn{X: RowsOf(FP32, Aligned[float32](3*16), 16), TopkIdx: []int32{0, 1, 1, 2, -1, -1}}
	if _, err := h.Dispatch(&in, nil, nil); err != nil {
		t.Fatal(err)
	}
	total, err := b.Statistics()
	if err != nil || total.Dispatches != 1 || total.RowsSent != 2 || total.RowsReceived != 2 || total.Epoch != 1 {
		t.Errorf("statistics %+v, %v", total, err)
	}
	peer, err := b.PeerStatistics(0)
	if err != nil || peer.RowsSent != 2 || peer.BytesSent != total.BytesSent {
		t.Errorf("peer statistics %+v, %v", peer, err)
	}
	_, err = b.PeerStatistics(1)
	wantError(t, "peer", err, ErrInvalidArgument)
	experts, err := b.ExpertStatistics()
	if err != nil {
		t.Fatal(err)
	}
	if err := same("experts", experts, []uint64{1, 2, 1, 0}); err != nil {
		t.Error(err)
	}
	if err := same("local experts", b.LocalExperts(), []int32{0, 1, 2, 3}); err != nil {
		t.Error(err)
	}
	trace, err := b.Trace()
	if err != nil || len(trace) == 0 || trace[len(trace)-1] == 0 {
		t.Errorf("trace %q, %v", trace, err)
	}
}

func TestRowsHelpers(t *testing.T) {
	for n := 1; n < 40; n++ {
		s := Aligned[uint16](n)
		if len(s) != n || uintptr(unsafe.Pointer(&s[0]))%16 != 0 {
			t.Fatalf("Aligned(%d): %d elements at %p", n, len(s), s)
		}
	}
	x := RowsOf(BF16, make([]uint16, 6*8), 8).Slabs(2)
	if x.Rows != 3 {
		t.Errorf("%d rows in a slab", x.Rows)
	}
	View[uint16](x.Row(1, 2))[7] = 5
	if got := View[uint16](x.Data)[47]; got != 5 {
		t.Errorf("the last element is %d", got)
	}
	if x.Row(1, 3) != nil || x.Row(2, 0) != nil || x.Row(-1, 0) != nil {
		t.Error("rows outside are not nil")
	}
	if r := RowsOf(FP32, []float32(nil), 8); r.Data == nil || r.Rows != 0 {
		t.Errorf("no rows are %+v", r)
	}
	if View[uint32](x.Data[2:]) != nil {
		t.Error("a view that is not aligned")
	}
}
