package deepep

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

// testTimeout is long enough for a busy machine, and ends a test whose ranks fell apart.
const testTimeout = 20 * time.Second

// inRanks runs one goroutine for each rank, each on a thread of its own, and reports what they return.
func inRanks(t *testing.T, ranks int, body func(rank int) error) {
	t.Helper()
	errs := make([]error, ranks)
	var all sync.WaitGroup
	for rank := 0; rank < ranks; rank++ {
		all.Add(1)
		go func(rank int) {
			defer all.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			errs[rank] = body(rank)
		}(rank)
	}
	all.Wait()
	for rank, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// localBuffers makes a group of ranks in this process, closed when the test ends.
func localBuffers(t *testing.T, ranks int, config BufferConfig) []*Buffer {
	t.Helper()
	comms, err := JoinLocal(CommConfig{NumRanks: ranks}, nil)
	if err != nil {
		t.Fatal(err)
	}
	buffers, err := NewBuffersLocal(comms, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for rank := range comms {
			if err := firstError(buffers[rank].Close(), comms[rank].Close()); err != nil {
				t.Errorf("closing rank %d: %v", rank, err)
			}
		}
	})
	return buffers
}

// stopOnError aborts the group when a rank fails, so that the others do not wait for the deadline.
func stopOnError(buffer *Buffer, err error) error {
	if err != nil {
		_ = buffer.Comm().Abort(err.Error())
	}
	return err
}

// same compares two slices and names the first difference.
func same[T comparable](what string, got, want []T) error {
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("%s[%d] is %v, want %v", what, i, got[i], want[i])
		}
	}
	return nil
}
