package main

import (
	"deepep"
)

// rank is one rank's goroutine and what it owns.
type rank struct {
	buffer  *deepep.Buffer
	experts []int32
	steps   chan step
	flights [2]*flight
	err     error // the first; read after run has returned

	overlapped int // steps sent while another was in flight
}

// flight is one batch on its way: sent, but not combined.
type flight struct {
	handle   *deepep.Handle
	requests []*request
	tokens   []float32
	ids      []int32
	weights  []float32
	sums     []float32
}

func newRank(buffer *deepep.Buffer) (*rank, error) {
	r := &rank{buffer: buffer, experts: buffer.LocalExperts(), steps: make(chan step)}
	for i := range r.flights {
		handle, err := buffer.NewHandle()
		if err != nil {
			return nil, err
		}
		r.flights[i] = &flight{handle: handle}
	}
	return r, nil
}

// run does the steps. After a failure it aborts the group and answers every request with the error.
func (r *rank) run() {
	var last *flight
	next := 0
	for s := range r.steps {
		var now *flight
		if !s.flush {
			now = r.flights[next]
			next = 1 - next
			r.check(now.send(s.share[0], r.err))
			if last != nil {
				r.overlapped++
			}
		}
		if last != nil {
			r.check(last.finish(r.experts, r.err))
		}
		last = now
	}
	for _, f := range r.flights {
		r.check(f.handle.Close())
	}
	r.check(r.buffer.Close())
	r.check(r.buffer.Comm().Close())
}

func (r *rank) check(err error) {
	if err != nil && r.err == nil {
		r.err = err
		_ = r.buffer.Comm().Abort(err.Error())
	}
}

// send sends the tokens of the requests to their experts, unless something has failed already.
func (f *flight) send(requests []*request, failed error) error {
	f.requests, f.tokens, f.ids, f.weights = requests, f.tokens[:0], f.ids[:0], f.weights[:0]
	for _, r := range requests {
		f.tokens = append(f.tokens, r.tokens...)
		f.ids = append(f.ids, r.ids...)
		f.weights = append(f.weights, r.weights...)
	}
	if failed != nil {
		return nil
	}
	return f.handle.DispatchSend(&deepep.DispatchIn{
		X: deepep.RowsOf(deepep.FP32, f.tokens, hidden), TopkIdx: f.ids, TopkWeights: f.weights,
	}, nil)
}

// finish receives, runs the experts, combines and answers the requests.
func (f *flight) finish(experts []int32, failed error) error {
	f.sums = make([]float32, len(f.tokens)) // goes to the clients
	err := failed
	if err == nil {
		err = f.layer(experts)
	}
	rows := f.sums
	for _, r := range f.requests {
		r.reply <- reply{rows[:len(r.tokens):len(r.tokens)], err}
		rows = rows[len(r.tokens):]
	}
	return err
}

func (f *flight) layer(experts []int32) error {
	got, err := f.handle.DispatchRecv(nil, nil)
	if err != nil {
		return err
	}
	// The experts write where the combine reads.
	y, err := f.handle.CombineInput(deepep.FP32, nil)
	if err != nil {
		return err
	}
	for local, e := range experts {
		for row := 0; row < int(got.ExpertCounts[local]); row++ {
			expert(e, deepep.View[float32](got.X.Row(local, row)), deepep.View[float32](y.Row(local, row)))
		}
	}
	if err := f.handle.CombineSend(&deepep.CombineIn{X: y, Exact: true, WeightsOfDispatch: true}, nil); err != nil {
		return err
	}
	return f.handle.CombineRecv(&deepep.CombineOut{X: deepep.RowsOf(deepep.FP32, f.sums, hidden)}, nil)
}
