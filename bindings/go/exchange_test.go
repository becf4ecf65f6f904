package deepep

import (
	"fmt"
	"testing"
)

var layouts = map[string]Layout{
	"PackedByRank": PackedByRank, "PackedByExpert": PackedByExpert,
	"SlottedByRank": SlottedByRank, "SlottedByExpert": SlottedByExpert,
}

// how says which of the equal ways a test goes.
type how struct {
	split   bool // send and receive apart
	own     bool // the caller brings memory for everything
	wide    bool // 64-bit ids
	inPlace bool // combine from memory of the library
}

func (w *world) in(me int, way how) *DispatchIn {
	in := &DispatchIn{X: RowsOf(w.dtype, w.x[me], w.hidden), TopkIdx: w.ids[me], TopkWeights: w.weights[me]}
	if way.wide {
		in.TopkIdx = nil
		for _, id := range w.ids[me] {
			in.TopkIdx64 = append(in.TopkIdx64, int64(id))
		}
	}
	return in
}

// ownMemory is memory of the caller for everything a dispatch brings, filled with something else.
func ownMemory(b *Buffer, dtype DType, hidden int) *DispatchOut {
	slabs, rows := b.Capacity()
	l := b.lengths(rows)
	x := Aligned[byte](slabs * rows * hidden * dtype.Size())
	for i := range x {
		x[i] = 0xEE
	}
	return &DispatchOut{
		X: RowsOf(dtype, x, hidden).Slabs(slabs),
		Arrays: Arrays{
			TopkIdx: make([]int32, l.ids), TopkWeights: make([]float32, l.ids), RowSource: make([]int64, l.perRow),
			RankCounts: make([]int32, l.ranks), ExpertCounts: make([]int32, l.experts),
			ExpertOffsets: make([]int64, l.offsets), TrueRows: make([]int64, l.trueRows),
			SourceRanges: make([]int32, l.ranges),
		},
	}
}

func dispatch(h *Handle, in *DispatchIn, out *DispatchOut, way how) (*Received, error) {
	if !way.split {
		return h.Dispatch(in, out, nil)
	}
	if err := h.DispatchSend(in, nil); err != nil {
		return nil, err
	}
	return h.DispatchRecv(out, nil)
}

// checkReceived compares everything a dispatch brought with the reference. row is what is to lie at a place.
func (w *world) checkReceived(me int, got *Received, row func(p place) []byte) error {
	e := w.dispatch(me)
	for i := 0; i+1 < len(e.SourceRanges) && len(got.SourceRanges) == len(e.SourceRanges); i += 2 {
		if e.SourceRanges[i+1] == 0 {
			e.SourceRanges[i] = got.SourceRanges[i] // where nothing begins is not specified
		}
	}
	if got.X.Rows != e.rows || got.X.Hidden != w.hidden {
		return fmt.Errorf("%d rows of %d fit, want %d of %d", got.X.Rows, got.X.Hidden, e.rows, w.hidden)
	}
	if err := firstError(
		same("TopkIdx", got.TopkIdx, e.TopkIdx), same("TopkWeights", got.TopkWeights, e.TopkWeights),
		same("RowSource", got.RowSource, e.RowSource), same("RankCounts", got.RankCounts, e.RankCounts),
		same("ExpertCounts", got.ExpertCounts, e.ExpertCounts), same("TrueRows", got.TrueRows, e.TrueRows),
		same("ExpertOffsets", got.ExpertOffsets, e.ExpertOffsets),
		same("SourceRanges", got.SourceRanges, e.SourceRanges),
	); err != nil {
		return err
	}
	for _, p := range e.places {
		if err := same(fmt.Sprintf("X of %+v", p), got.X.Row(p.slab, p.row), row(p)); err != nil {
			return err
		}
	}
	for _, pad := range e.pads {
		if err := same(fmt.Sprintf("pad %d", pad), got.X.Row(0, pad), make([]byte, len(got.X.Row(0, pad)))); err != nil {
			return err
		}
	}
	return nil
}

// sent is the row of a place as its source sent it.
func (w *world) sent(p place) []byte {
	return w.x[p.source][p.token*w.rowBytes() : (p.token+1)*w.rowBytes()]
}

// combineAndCheck gives the experts' rows of the reference to a combine and compares the sums.
func (w *world) combineAndCheck(b *Buffer, h *Handle, me int, c combination, way how) error {
	e := w.dispatch(me)
	in := CombineIn{Exact: c.exact, WeightsOfDispatch: c.ofDispatch}
	if way.inPlace {
		x, err := h.CombineInput(c.dtype, nil)
		if err != nil {
			return err
		}
		in.X = x
	} else {
		in.X = RowsOf(c.dtype, Aligned[byte](e.slabs*e.rows*w.hidden*c.dtype.Size()), w.hidden).Slabs(e.slabs)
	}
	l := b.lengths(e.rows)
	if c.rowWeights {
		in.RowWeights = make([]float32, l.perRow)
	}
	if c.carried {
		in.CarriedWeights = make([]float32, l.ids)
	}
	for _, p := range e.places {
		copy(in.X.Row(p.slab, p.row), w.output(c.dtype, me, p.source, p.token, p.k))
		at := p.slab*e.rows + p.row
		if c.rowWeights {
			in.RowWeights[at] = weight(0, me, p.source, p.token, p.k)
		}
		for k := 0; c.carried && k < w.topk; k++ {
			if rank, _, ok := w.id(p.source, p.token, k); ok && rank == me && p.k == -1 {
				in.CarriedWeights[at*w.topk+k] = weight(2, me, p.source, p.token, k)
			}
		}
		if c.carried && p.k >= 0 {
			in.CarriedWeights[at] = weight(2, me, p.source, p.token, p.k)
		}
	}
	if c.topkWeights {
		for token := 0; token < w.tokens[me]; token++ {
			for k := 0; k < w.topk; k++ {
				in.TopkWeights = append(in.TopkWeights, weight(1, 0, me, token, k))
			}
		}
	}
	sums := Aligned[byte](w.tokens[me] * w.hidden * c.dtype.Size())
	out := CombineOut{X: RowsOf(c.dtype, sums, w.hidden)}
	for i := 0; i < c.biases; i++ {
		out.Bias[i] = w.bias(c.dtype, me, i)
	}
	if c.carried {
		out.CarriedWeights = make([]float32, w.tokens[me]*w.topk)
	}
	var err error
	if way.split {
		if err = h.CombineSend(&in, nil); err == nil {
			err = h.CombineRecv(&out, nil)
		}
	} else {
		err = h.Combine(&in, &out, nil)
	}
	if err != nil {
		return err
	}
	wantSums, wantCarried := w.combine(me, c)
	if c.carried {
		err = same("CarriedWeights", out.CarriedWeights, wantCarried)
	}
	return firstError(err, same("sums", sums, wantSums))
}

// TestExchange runs dispatches and combines of all layouts, ways to synchronise and ways to place memory, and compares
// every byte with the reference.
func TestExchange(t *testing.T) {
	syncs := map[string]Sync{"Auto": SyncAuto, "Ack": SyncAck, "Barrier": SyncBarrier}
	ways := []how{{}, {split: true, own: true, wide: true, inPlace: true}, {own: true}, {split: true, inPlace: true}}
	for layoutName, layout := range layouts {
		layout := layout
		for syncName, sync := range syncs {
			sync := sync
			t.Run(layoutName+"/"+syncName, func(t *testing.T) {
				for _, seed := range []int64{2, 3} { // one with the even split of experts, one with a map
					first := makeWorld(seed, layout, BF16)
					config := first.config()
					config.Sync = sync
					buffers := localBuffers(t, first.ranks, config)
					inRanks(t, first.ranks, func(rank int) error {
						b := buffers[rank]
						return stopOnError(b, exchange(b, rank, seed, layout, ways))
					})
				}
			})
		}
	}
}

// exchange is one rank's part: several worlds one after another through one handle and buffer.
func exchange(b *Buffer, me int, seed int64, layout Layout, ways []how) error {
	h, err := b.NewHandle()
	if err != nil {
		return err
	}
	for i := 0; i < 2*len(ways); i++ {
		dtype := []DType{BF16, FP32, Opaque, BF16}[i%4]
		var empty []int
		if i%3 == 2 {
			empty = []int{i % 4}
		}
		w := makeWorld(seed+int64(2*i), layout, dtype, empty...)
		way := ways[i%len(ways)]
		out := &DispatchOut{}
		if way.own {
			out = ownMemory(b, dtype, w.hidden)
		}
		got, err := dispatch(h, w.in(me, way), out, way)
		if err == nil {
			err = w.checkReceived(me, got, w.sent)
		}
		if err != nil {
			return fmt.Errorf("dispatch %d (%+v): %w", i, way, err)
		}
		for j, c := range w.combinations(i) {
			if err := w.combineAndCheck(b, h, me, c, way); err != nil {
				return fmt.Errorf("combine %d.%d (%+v, %+v): %w", i, j, way, c, err)
			}
		}
	}
	return h.Close()
}

// combinations are the ways to combine that step i of a layout tries.
func (w *world) combinations(i int) []combination {
	dtype := []DType{BF16, FP32}[i%2]
	all := []combination{
		{dtype: dtype},
		{dtype: dtype, rowWeights: true, biases: 1, carried: true},
	}
	if w.layout == PackedByExpert || w.layout == SlottedByExpert {
		all = append(all,
			combination{dtype: dtype, ofDispatch: true, biases: 2},
			combination{dtype: dtype, exact: true, topkWeights: true, biases: i % 3},
			combination{dtype: dtype, exact: true, ofDispatch: true, rowWeights: true, carried: true},
		)
	}
	return all
}

// TestCast sends BF16 rows that cross as FP8 with float scales, placed row- and column-major.
func TestCast(t *testing.T) {
	for name, layout := range layouts {
		layout := layout
		t.Run(name, func(t *testing.T) {
			w := makeWorld(8, layout, BF16)
			buffers := localBuffers(t, w.ranks, w.config())
			inRanks(t, w.ranks, func(me int) error { return stopOnError(buffers[me], w.cast(buffers[me], me)) })
		})
	}
}

func (w *world) cast(b *Buffer, me int) error {
	h, err := b.NewHandle()
	if err != nil {
		return err
	}
	in := w.in(me, how{})
	in.WireDType = FP8E4M3
	for _, columnMajor := range []bool{false, true} {
		out := &DispatchOut{}
		if columnMajor {
			if w.layout == PackedByRank || w.layout == SlottedByRank {
				break
			}
			out.Scales.ColStride = 8
		}
		got, err := h.Dispatch(in, out, nil)
		if err != nil {
			return err
		}
		if got.X.DType != FP8E4M3 || got.Scales.DType != ScaleFP32 || (got.Scales.ColStride > 4) != columnMajor {
			return fmt.Errorf("rows of type %d, scales %+v", got.X.DType, got.Scales)
		}
		blocks := (w.hidden + 127) / 128
		row, col, slot := got.Scales.strides(got.X.Rows, blocks)
		want := func(p place) (codes, scales []byte) {
			numbers := make([]float32, w.hidden)
			for i := range numbers {
				numbers[i] = load(BF16, w.sent(p), i)
			}
			return castFP8(numbers)
		}
		if err := w.checkReceived(me, got, func(p place) []byte { codes, _ := want(p); return codes }); err != nil {
			return err
		}
		for _, p := range w.dispatch(me).places {
			_, scales := want(p)
			for block := 0; block < blocks; block++ {
				at := p.slab*slot + p.row*row + block*col
				err := same(fmt.Sprintf("scale %d of %+v", block, p), got.Scales.Data[at:at+4], scales[4*block:4*block+4])
				if err != nil {
					return err
				}
			}
		}
		if err := h.Release(nil); err != nil {
			return err
		}
	}
	return h.Close()
}

// TestCached reuses a routing for rows of another type.
func TestCached(t *testing.T) {
	w := makeWorld(4, PackedByRank, BF16)
	buffers := localBuffers(t, w.ranks, w.config())
	inRanks(t, w.ranks, func(me int) error {
		b := buffers[me]
		return stopOnError(b, func() error {
			h, err := b.NewHandle()
			if err != nil {
				return err
			}
			if _, err = h.Dispatch(w.in(me, how{}), nil, nil); err != nil {
				return err
			}
			if err = h.Release(nil); err != nil {
				return err
			}
			again := makeWorld(4, PackedByRank, FP32)
			in := &DispatchIn{X: RowsOf(FP32, again.x[me], again.hidden), Cached: true}
			got, err := h.Dispatch(in, nil, nil)
			if err != nil {
				return err
			}
			if err := again.checkReceived(me, got, again.sent); err != nil {
				return err
			}
			counts, rows, err := h.WaitCounts(0)
			if err != nil {
				return err
			}
			for l, n := range counts {
				if int32(n) != got.ExpertCounts[l] {
					return fmt.Errorf("WaitCounts: %d rows of local expert %d, want %d", n, l, got.ExpertCounts[l])
				}
			}
			if rows != got.TrueRows[0] {
				return fmt.Errorf("WaitCounts: %d rows, want %d", rows, got.TrueRows[0])
			}
			return h.Close()
		}())
	})
}
