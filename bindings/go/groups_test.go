package deepep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// step makes a buffer on a comm, runs one dispatch and one combine, compares both and closes everything.
func step(comm *Comm) error {
	w := makeWorld(6, PackedByExpert, BF16)
	b, err := comm.NewBuffer(w.config())
	if err != nil {
		return err
	}
	h, err := b.NewHandle()
	if err != nil {
		return err
	}
	got, err := h.Dispatch(w.in(comm.Rank(), how{}), nil, nil)
	if err != nil {
		return err
	}
	if err := w.checkReceived(comm.Rank(), got, w.sent); err != nil {
		return err
	}
	exact := combination{dtype: BF16, exact: true, ofDispatch: true}
	if err := w.combineAndCheck(b, h, comm.Rank(), exact, how{}); err != nil {
		return err
	}
	return firstError(b.Barrier(nil), h.Close(), b.Close(), comm.Close())
}

// rankVariable makes this test program one rank of a group instead.
const rankVariable, idVariable = "DEEPEP_TEST_RANK", "DEEPEP_TEST_ID"

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(rankVariable); ok {
		if err := processRank(text, os.Getenv(idVariable)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func processRank(rank, text string) error {
	number, err := strconv.Atoi(rank)
	if err != nil {
		return err
	}
	var id UniqueID
	if err := id.UnmarshalText([]byte(text)); err != nil {
		return err
	}
	comm, err := Join(id, CommConfig{Rank: number, NumRanks: 4, Timeout: testTimeout})
	if err != nil {
		return err
	}
	return step(comm)
}

// TestProcesses runs four ranks as four processes that meet by a unique id.
func TestProcesses(t *testing.T) {
	id, err := NewUniqueID("")
	if err != nil {
		t.Fatal(err)
	}
	text, err := id.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	deadline, cancel := context.WithTimeout(context.Background(), 2*testTimeout)
	defer cancel()
	inRanks(t, 4, func(rank int) error {
		command := exec.CommandContext(deadline, os.Args[0])
		command.Env = append(os.Environ(), fmt.Sprintf("%s=%d", rankVariable, rank), idVariable+"="+string(text))
		output, err := command.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%v: %s", err, output)
		}
		return nil
	})
}

// TestJoin lets goroutines meet by a unique id over each kind of address.
func TestJoin(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	abstract := fmt.Sprintf("unix:@deepep-go-test-%d", os.Getpid())
	for _, address := range []string{"", port, abstract, "unix:" + filepath.Join(t.TempDir(), "meet")} {
		id, err := NewUniqueID(address)
		if err != nil {
			t.Fatalf("%q: %v", address, err)
		}
		inRanks(t, 4, func(rank int) error {
			comm, err := Join(id, CommConfig{Rank: rank, NumRanks: 4, Timeout: testTimeout})
			if err != nil {
				return fmt.Errorf("%q: %w", address, err)
			}
			return step(comm)
		})
	}
}

// meeting is an all-gather between goroutines.
type meeting struct {
	lock    sync.Mutex
	come    *sync.Cond
	parts   [][]byte
	count   int
	rounds  int
	waiting int
}

func newMeeting(ranks int) *meeting {
	m := &meeting{parts: make([][]byte, ranks)}
	m.come = sync.NewCond(&m.lock)
	return m
}

func (m *meeting) gather(rank int, mine, all []byte) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	for m.waiting > 0 && m.count == len(m.parts) { // the last round is still being read
		m.come.Wait()
	}
	m.parts[rank] = append([]byte(nil), mine...)
	m.count++
	m.waiting++
	round := m.rounds
	if m.count == len(m.parts) {
		m.rounds++
		m.come.Broadcast()
	}
	for m.rounds == round {
		m.come.Wait()
	}
	copy(all, bytes.Join(m.parts, nil))
	if m.waiting--; m.waiting == 0 {
		m.count = 0
		m.come.Broadcast()
	}
	return nil
}

// TestJoinWith lets ranks meet through an all-gather of the caller.
func TestJoinWith(t *testing.T) {
	m := newMeeting(4)
	inRanks(t, 4, func(rank int) error {
		gather := func(mine, all []byte) error { return m.gather(rank, mine, all) }
		comm, err := JoinWith(gather, CommConfig{Rank: rank, NumRanks: 4, Timeout: testTimeout})
		if err != nil {
			return err
		}
		return step(comm)
	})
}

// TestJoinWithFailures: an error and a panic of the caller's all-gather are errors of the join.
func TestJoinWithFailures(t *testing.T) {
	mine := errors.New("the network is down")
	config := CommConfig{Rank: 0, NumRanks: 2, Timeout: time.Second}
	_, err := JoinWith(func(_, _ []byte) error { return mine }, config)
	if !errors.Is(err, ErrSystem) || !errors.Is(err, mine) {
		t.Errorf("a failing all-gather: %v", err)
	}
	_, err = JoinWith(func(_, _ []byte) error { panic("oh") }, config)
	if !errors.Is(err, ErrSystem) {
		t.Errorf("a panicking all-gather: %v", err)
	}
	if _, err = JoinWith(nil, config); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("no all-gather: %v", err)
	}
}
