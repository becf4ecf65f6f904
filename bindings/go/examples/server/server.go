package main

import (
	"errors"
	"sync"
	"time"

	"deepep"
)

const (
	maxTokens = 32 // of one rank in one step, and of one request
	hidden    = 64
	experts   = 16
	topk      = 2
)

var errStopped = errors.New("the server is stopped")

// request is a batch of tokens on its way through the experts.
type request struct {
	tokens  []float32 // [n, hidden]
	ids     []int32   // [n, topk]
	weights []float32 // [n, topk]
	reply   chan reply
}

type reply struct {
	rows []float32 // [n, hidden]
	err  error
}

func (r *request) count() int { return len(r.tokens) / hidden }

// step is what all ranks do next: each sends its share of a batch, or with flush nothing new. Either way they finish the
// batch before it.
type step struct {
	flush bool
	share [][]*request // of each rank
}

// server runs one MoE layer over ranks that are goroutines.
type server struct {
	requests chan *request
	quit     chan struct{}
	stop     sync.Once
	ranks    []*rank
	done     sync.WaitGroup
}

func newServer(numRanks int) (*server, error) {
	comms, err := deepep.JoinLocal(deepep.CommConfig{NumRanks: numRanks}, nil)
	if err != nil {
		return nil, err
	}
	buffers, err := deepep.NewBuffersLocal(comms, deepep.BufferConfig{
		Layout: deepep.SlottedByExpert, MaxTokens: maxTokens, MaxRowBytes: hidden * 4,
		NumExperts: experts, NumTopk: topk, MaxInFlight: 2, Timeout: 20 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	s := &server{requests: make(chan *request), quit: make(chan struct{})}
	for _, buffer := range buffers {
		r, err := newRank(buffer)
		if err != nil {
			return nil, err
		}
		s.ranks = append(s.ranks, r)
	}
	s.done.Add(1 + numRanks)
	go func() { defer s.done.Done(); s.conduct() }()
	for _, r := range s.ranks {
		go func(r *rank) { defer s.done.Done(); r.run() }(r)
	}
	return s, nil
}

// submit sends tokens through their experts and waits for the sums. Any number of goroutines may call it.
func (s *server) submit(tokens []float32) ([]float32, error) {
	r := &request{tokens: tokens, reply: make(chan reply, 1)}
	if n := r.count(); n > maxTokens || n*hidden != len(tokens) {
		return nil, errors.New("a request is 0 to 32 whole tokens")
	}
	for t := 0; t < r.count(); t++ {
		ids, weights := gate(tokens[t*hidden : (t+1)*hidden])
		r.ids, r.weights = append(r.ids, ids[:]...), append(r.weights, weights[:]...)
	}
	select {
	case s.requests <- r:
	case <-s.quit:
		return nil, errStopped
	}
	answer := <-r.reply
	return answer.rows, answer.err
}

// close answers what was submitted, ends the ranks and returns the first thing that went wrong.
func (s *server) close() error {
	s.stop.Do(func() { close(s.quit) })
	s.done.Wait()
	for _, r := range s.ranks {
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

// conduct makes batches of what arrives. All ranks must do the same operations in the same order, also those that have
// nothing to send, so one goroutine decides for all. While requests wait, a batch is sent before the last is finished.
func (s *server) conduct() {
	var held *request // did not fit into the last batch
	inFlight := false
	for {
		share, any := s.collect(&held, !inFlight)
		if !any && !inFlight {
			break // only after quit
		}
		for i, r := range s.ranks {
			r.steps <- step{flush: !any, share: share[i : i+1]}
		}
		inFlight = any
	}
	for _, r := range s.ranks {
		close(r.steps)
	}
}

// collect shares out the requests that are there; with wait it waits for the first.
func (s *server) collect(held **request, wait bool) (share [][]*request, any bool) {
	share = make([][]*request, len(s.ranks))
	room := make([]int, len(s.ranks))
	for i := range room {
		room[i] = maxTokens
	}
	for {
		r := *held
		*held = nil
		switch {
		case r != nil:
		case wait && !any:
			select {
			case r = <-s.requests:
			case <-s.quit:
				return share, any
			}
		default:
			select {
			case r = <-s.requests:
			default:
				return share, any
			}
		}
		best := 0
		for i := range room {
			if room[i] > room[best] {
				best = i
			}
		}
		if r.count() > room[best] {
			*held = r
			return share, any
		}
		share[best] = append(share[best], r)
		room[best] -= r.count()
		any = true
	}
}
