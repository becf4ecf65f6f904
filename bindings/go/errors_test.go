package deepep

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestVersionAndNames(t *testing.T) {
	if want := uint32(VersionMajor*10000 + VersionMinor*100 + VersionPatch); LibraryVersion() != want {
		t.Errorf("version %d of the library, %d of the header", LibraryVersion(), want)
	}
	if !strings.Contains(strings.ToUpper(StatusTimeout.String()), "TIMEOUT") {
		t.Errorf("StatusTimeout is called %q", StatusTimeout)
	}
}

func TestErrorIs(t *testing.T) {
	err := fmt.Errorf("serving: %w", &Error{Status: StatusBusy, Msg: "no window is free"})
	if !errors.Is(err, ErrBusy) || errors.Is(err, ErrTimeout) {
		t.Error("errors.Is does not go by the status")
	}
	var e *Error
	if !errors.As(err, &e) || e.Msg != "no window is free" {
		t.Errorf("errors.As found %v", e)
	}
	if errors.Is(err, &Error{Status: StatusBusy, Msg: "another text"}) {
		t.Error("an error with a text is no sentinel")
	}
}

// wantError checks status and text of an error.
func wantError(t *testing.T, what string, err, sentinel error, parts ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("%s: %v, want %v", what, err, sentinel)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %q does not say %q", what, err, part)
		}
	}
}

func TestRefusedArguments(t *testing.T) {
	_, err := NewUniqueID("nowhere at all")
	wantError(t, "address", err, ErrInvalidArgument, "nowhere at all")
	_, err = Join(UniqueID{}, CommConfig{Rank: 0, NumRanks: 2})
	wantError(t, "no id", err, ErrInvalidArgument)
	_, err = Join(UniqueID{}, CommConfig{Rank: 7, NumRanks: 4})
	wantError(t, "rank", err, ErrInvalidArgument, "rank", "7")
	_, err = JoinLocal(CommConfig{NumRanks: 0}, nil)
	wantError(t, "no ranks", err, ErrInvalidArgument, "0")
	_, err = JoinLocal(CommConfig{NumRanks: 1, Timeout: -time.Second}, nil)
	wantError(t, "timeout", err, ErrInvalidArgument, "Timeout")
	_, err = JoinLocal(CommConfig{NumRanks: 1, Device: math.MaxInt64}, nil)
	wantError(t, "wide number", err, ErrInvalidArgument, "Device")
	_, err = JoinLocal(CommConfig{NumRanks: 2}, []int32{0})
	wantError(t, "devices", err, ErrInvalidArgument, "devices")
	_, err = JoinLocal(CommConfig{NumRanks: 1, Backend: BackendCUDA}, nil)
	wantError(t, "backend", err, ErrUnsupported)
	_, err = NewBuffersLocal(nil, BufferConfig{})
	wantError(t, "no comms", err, ErrInvalidArgument)

	var id UniqueID
	wantError(t, "short id", id.UnmarshalText([]byte("12")), ErrInvalidArgument)
	wantError(t, "no digits", id.UnmarshalText([]byte(strings.Repeat("zz", 128))), ErrInvalidArgument)
}

// one is a group of one rank.
func one(t *testing.T, config BufferConfig) (*Buffer, *Handle) {
	t.Helper()
	b := localBuffers(t, 1, config)[0]
	h, err := b.NewHandle()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return b, h
}

func TestRefusedConfigurations(t *testing.T) {
	comms, err := JoinLocal(CommConfig{NumRanks: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer comms[0].Close()
	good := BufferConfig{MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2}
	for field, spoil := range map[string]func(*BufferConfig){
		"max_tokens":    func(c *BufferConfig) { c.MaxTokens = 0 },
		"max_row_bytes": func(c *BufferConfig) { c.MaxRowBytes = 63 },
		"num_topk":      func(c *BufferConfig) { c.NumTopk = 33; c.NumExperts = 64 },
		"layout":        func(c *BufferConfig) { c.Layout = 9 },
		"NumExperts":    func(c *BufferConfig) { c.NumExperts = math.MaxInt64 },
		"ExpertRank":    func(c *BufferConfig) { c.ExpertRank = []int32{0} },
		"expert_rank":   func(c *BufferConfig) { c.ExpertRank = []int32{0, 0, 1, 0} },
	} {
		config := good
		spoil(&config)
		_, err := comms[0].BufferSize(config)
		wantError(t, field, err, ErrInvalidArgument, field)
		_, err = NewBuffersLocal(comms, config)
		wantError(t, field, err, ErrInvalidArgument, field)
	}
	sizes, err := comms[0].BufferSize(good)
	if err != nil || sizes.TotalDevice < sizes.DispatchWindow || sizes.TotalSymmetric <= 0 {
		t.Errorf("sizes %+v, %v", sizes, err)
	}
}

// TestRefusedSlices: slices that the library would read or write past their end are refused, and the handle works on.
func TestRefusedSlices(t *testing.T) {
	_, h := one(t, BufferConfig{MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2})
	x, ids := Aligned[float32](4*16), []int32{0, 1, 1, 2, 2, 3, 3, 0}
	good := DispatchIn{X: RowsOf(FP32, x, 16), TopkIdx: ids}
	for name, spoil := range map[string]func(*DispatchIn){
		"TopkIdx":     func(in *DispatchIn) { in.TopkIdx = ids[:7] },
		"TopkWeights": func(in *DispatchIn) { in.TopkWeights = make([]float32, 1) },
		"both":        func(in *DispatchIn) { in.TopkIdx64 = make([]int64, 8) },
		"X.Data":      func(in *DispatchIn) { in.X.Rows = 5 },
		"negative":    func(in *DispatchIn) { in.X.Rows = -1 },
		"take":        func(in *DispatchIn) { in.X.RowStride = math.MaxInt64 },
		"topk_idx":    func(in *DispatchIn) { in.TopkIdx = nil },
		"hidden":      func(in *DispatchIn) { in.X.Hidden = 0 },
		"dtype":       func(in *DispatchIn) { in.X.DType = DTypeNone },
	} {
		in := good
		spoil(&in)
		_, err := h.Dispatch(&in, nil, nil)
		wantError(t, name, err, ErrInvalidArgument, name)
	}
	tooMany := DispatchIn{X: RowsOf(FP32, Aligned[float32](5*16), 16), TopkIdx: make([]int32, 10)}
	_, err := h.Dispatch(&tooMany, nil, nil)
	wantError(t, "max_tokens", err, ErrCapacityExceeded, "5", "4")
	_, err = h.Dispatch(&good, &DispatchOut{Arrays: Arrays{RowSource: make([]int64, 3)}}, nil)
	wantError(t, "RowSource", err, ErrInvalidArgument, "RowSource")
	_, err = h.Dispatch(&good, &DispatchOut{X: Rows{Data: Bytes(x)[:32], Rows: 4}}, nil)
	wantError(t, "DispatchOut.X", err, ErrInvalidArgument, "DispatchOut.X")
	_, err = h.Dispatch(nil, nil, nil)
	wantError(t, "nil", err, ErrInvalidArgument)

	got, err := h.Dispatch(&good, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	rows := RowsOf(FP32, Aligned[float32](4*16), 16)
	sums := CombineOut{X: RowsOf(FP32, Aligned[float32](4*16), 16)}
	short := CombineOut{X: RowsOf(FP32, Aligned[float32](3*16), 16)}
	wantError(t, "out", h.Combine(&CombineIn{X: rows}, &short, nil), ErrInvalidArgument, "CombineOut.X")
	wantError(t, "no in", h.Combine(&CombineIn{X: Rows{Data: rows.Data, DType: FP32}}, &sums, nil), ErrInvalidArgument,
		"brought 4")
	short = sums
	short.Bias[1] = make([]byte, 16)
	wantError(t, "bias", h.Combine(&CombineIn{X: rows}, &short, nil), ErrInvalidArgument, "Bias[1]")
	wantError(t, "weights", h.Combine(&CombineIn{X: rows, RowWeights: make([]float32, 3)}, &sums, nil),
		ErrInvalidArgument, "RowWeights")
	wantError(t, "exact", h.Combine(&CombineIn{X: rows, Exact: true}, &sums, nil), ErrUnsupported)
	wantError(t, "in place", h.Combine(&CombineIn{X: Rows{DType: FP32}}, &sums, nil), ErrInvalidState)
	copy(rows.Data, got.X.Data)
	if err := h.Combine(&CombineIn{X: rows}, &sums, nil); err != nil {
		t.Fatal(err)
	}
	if err := same("sums", View[float32](sums.X.Data), x); err != nil {
		t.Error(err)
	}
}

func TestWrongStates(t *testing.T) {
	b, h := one(t, BufferConfig{MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2})
	in := DispatchIn{X: RowsOf(FP32, Aligned[float32](4*16), 16), TopkIdx: []int32{0, 1, 1, 2, 2, 3, 3, 0}}
	sums := CombineOut{X: RowsOf(FP32, Aligned[float32](4*16), 16)}
	_, err := h.DispatchRecv(nil, nil)
	wantError(t, "receive without send", err, ErrInvalidState)
	_, _, err = h.WaitCounts(0)
	wantError(t, "counts", err, ErrInvalidState)
	wantError(t, "combine receive", h.CombineRecv(&sums, nil), ErrInvalidState)
	_, err = b.Trace()
	wantError(t, "trace", err, ErrInvalidState)
	if _, err = h.Dispatch(&in, nil, nil); err != nil {
		t.Fatal(err)
	}
	_, err = h.Dispatch(&in, nil, nil)
	wantError(t, "rows in use", err, ErrBusy)
	if err := h.Release(nil); err != nil {
		t.Fatal(err)
	}
	if _, err = h.Dispatch(&in, nil, nil); err != nil {
		t.Fatal(err)
	}
}

// TestBadIDs: a bad expert id is -1 and reported, or refused where the buffer says so.
func TestBadIDs(t *testing.T) {
	config := BufferConfig{MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2}
	in := DispatchIn{X: RowsOf(FP32, Aligned[float32](2*16), 16), TopkIdx: []int32{0, 1, 77, 2}}
	b, h := one(t, config)
	got, err := h.Dispatch(&in, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := same("TopkIdx", got.TopkIdx, []int32{0, 1, -1, 2, -1, -1, -1, -1}); err != nil {
		t.Error(err)
	}
	for _, want := range []Status{StatusInvalidExpertID, StatusSuccess} {
		report, err := b.Report()
		if err != nil || report.Status != want || want != StatusSuccess && (report.Row != 1 || report.Value != 77) {
			t.Errorf("report %+v, %v; want %v", report, err, want)
		}
	}
	config.RefuseBadIDs = true
	_, h = one(t, config)
	_, err = h.Dispatch(&in, nil, nil)
	wantError(t, "refused", err, ErrInvalidExpertID, "77")
	in.TopkIdx[2] = 3
	if _, err = h.Dispatch(&in, nil, nil); err != nil {
		t.Error(err)
	}
}

// TestAbsentRank: a rank that does not come is named, and a reset without it goes on.
func TestAbsentRank(t *testing.T) {
	config := BufferConfig{
		Layout: SlottedByRank, MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2,
		Timeout: 200 * time.Millisecond, FirstTimeout: 200 * time.Millisecond,
	}
	buffers := localBuffers(t, 4, config)
	inRanks(t, 3, func(rank int) error {
		b := buffers[rank]
		err := b.Barrier(nil)
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "3") {
			return fmt.Errorf("barrier: %v", err)
		}
		report, err := b.Report()
		if err != nil {
			return err
		}
		if report.Status != StatusTimeout || report.FirstMissing != 3 || len(report.Missing) != 1 ||
			report.Missing[0] != 3 || report.Operation != OperationBarrier || report.Rank != rank {
			return fmt.Errorf("report %+v", report)
		}
		if err := b.Barrier(nil); !errors.Is(err, ErrTimeout) {
			return fmt.Errorf("a poisoned buffer: %v", err)
		}
		if err := b.SetTimeout(testTimeout); err != nil {
			return err
		}
		if err := b.Reset([]bool{true, true, true}); !errors.Is(err, ErrInvalidArgument) {
			return fmt.Errorf("a short mask: %v", err)
		}
		time.Sleep(time.Duration(rank) * time.Millisecond)
		if err := b.Reset([]bool{true, true, true, false}); err != nil {
			return err
		}
		alive, err := b.Alive()
		if err != nil {
			return err
		}
		return firstError(same("alive", alive, []bool{true, true, true, false}), b.Barrier(nil))
	})
}

// TestAbort ends a wait of other ranks, with the reason.
func TestAbort(t *testing.T) {
	config := BufferConfig{MaxTokens: 4, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2, Timeout: testTimeout}
	buffers := localBuffers(t, 4, config)
	inRanks(t, 4, func(rank int) error {
		b := buffers[rank]
		if rank == 2 {
			time.Sleep(20 * time.Millisecond)
			return b.Comm().Abort("the model is gone")
		}
		err := b.Barrier(nil)
		if !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "the model is gone") {
			return fmt.Errorf("barrier: %v", err)
		}
		return nil
	})
}

// TestErrorTexts: goroutines that share threads each get the text of their own failure.
func TestErrorTexts(t *testing.T) {
	comms, err := JoinLocal(CommConfig{NumRanks: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer comms[0].Close()
	var all sync.WaitGroup
	for i := 0; i < 64; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			for j := 0; j < 50; j++ {
				bad := -1000*i - j - 1
				_, err := comms[0].BufferSize(BufferConfig{MaxTokens: bad, MaxRowBytes: 64, NumExperts: 4, NumTopk: 2})
				if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d", bad)) {
					t.Errorf("the error for %d is %v", bad, err)
				}
				runtime.Gosched()
			}
		}(i)
	}
	all.Wait()
}
