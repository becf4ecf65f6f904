package deepep

import (
	"math"
	"math/rand"
)

// world is a group of ranks, its experts and what every rank sends: all that a plain reference needs to know about one
// dispatch. Every rank computes the same world from the same seed.
type world struct {
	layout                 Layout
	ranks, maxTokens, topk int
	experts, alignment     int
	expertRank             []int32
	hidden                 int
	dtype                  DType // of the rows that cross

	tokens  []int       // of each rank
	ids     [][]int32   // [rank][tokens * topk]
	weights [][]float32 // likewise
	x       [][]byte    // [rank][tokens * hidden] in dtype
}

// makeWorld draws a world; empty ranks have no tokens.
func makeWorld(seed int64, layout Layout, dtype DType, empty ...int) *world {
	r := rand.New(rand.NewSource(seed))
	w := &world{layout: layout, ranks: 4, maxTokens: 12, topk: 3, experts: 10, alignment: 1, hidden: 160, dtype: dtype}
	if layout == PackedByExpert {
		w.alignment = 4
	}
	if seed%2 == 1 { // every other world has a map instead of the even split
		for e := 0; e < w.experts; e++ {
			w.expertRank = append(w.expertRank, int32(e*7%w.ranks))
		}
	}
	for rank := 0; rank < w.ranks; rank++ {
		n := 1 + r.Intn(w.maxTokens)
		for _, none := range empty {
			if none == rank {
				n = 0
			}
		}
		w.tokens = append(w.tokens, n)
		ids, weights := make([]int32, n*w.topk), make([]float32, n*w.topk)
		for token := 0; token < n; token++ {
			for k, id := range r.Perm(w.experts)[:w.topk] {
				ids[token*w.topk+k] = int32(id)
				if r.Intn(6) == 0 {
					ids[token*w.topk+k] = -1
				}
				weights[token*w.topk+k] = r.Float32()
			}
		}
		w.ids, w.weights = append(w.ids, ids), append(w.weights, weights)
		x := Aligned[byte](n * w.hidden * dtype.Size())
		fillRows(rand.New(rand.NewSource(seed*100+int64(rank))), dtype, x) // routing does not depend on the type
		w.x = append(w.x, x)
	}
	return w
}

func fillRows(r *rand.Rand, dtype DType, x []byte) {
	switch dtype {
	case BF16, FP32:
		for i := 0; i < len(x)/dtype.Size(); i++ {
			store(dtype, x, i, float32(r.NormFloat64()))
		}
	default:
		r.Read(x)
	}
}

func (w *world) rowBytes() int { return w.hidden * w.dtype.Size() }

// owner is the rank of an expert and its local id there.
func (w *world) owner(expert int) (rank, local int) {
	rankOf := func(e int) int {
		if w.expertRank != nil {
			return int(w.expertRank[e])
		}
		for rank, first := 0, 0; ; rank++ {
			n := w.experts / w.ranks
			if rank < w.experts%w.ranks {
				n++
			}
			if e < first+n {
				return rank
			}
			first += n
		}
	}
	rank = rankOf(expert)
	for e := 0; e < expert; e++ {
		if rankOf(e) == rank {
			local++
		}
	}
	return rank, local
}

func (w *world) localExperts(rank int) int {
	n := 0
	for e := 0; e < w.experts; e++ {
		if r, _ := w.owner(e); r == rank {
			n++
		}
	}
	return n
}

// id is a token's k-th expert: its rank and local id, or ok false for none.
func (w *world) id(source, token, k int) (rank, local int, ok bool) {
	id := w.ids[source][token*w.topk+k]
	if id < 0 {
		return 0, 0, false
	}
	rank, local = w.owner(int(id))
	return rank, local, true
}

// place is one received row: where it lies and what it is. k is -1 in by-rank layouts.
type place struct{ slab, row, source, token, k int }

// expected is what a dispatch leaves on one rank.
type expected struct {
	slabs, rows int // as many as fit in a slab
	places      []place
	pads        []int // PackedByExpert: rows of zeros
	Arrays
}

// dispatch is the naive dispatch as rank `me` sees it.
func (w *world) dispatch(me int) *expected {
	local := w.localExperts(me)
	config := w.config()
	e := &expected{}
	e.slabs, e.rows = config.capacity(w.ranks, local)
	e.RankCounts, e.ExpertCounts, e.TrueRows = make([]int32, w.ranks), make([]int32, local), make([]int64, 2)
	if w.layout == SlottedByExpert {
		e.SourceRanges = make([]int32, local*w.ranks*2)
	}

	byRank := 0
	for source := 0; source < w.ranks; source++ {
		slot := 0
		for token := 0; token < w.tokens[source]; token++ {
			here := false
			for k := 0; k < w.topk; k++ {
				if rank, l, ok := w.id(source, token, k); ok && rank == me {
					here = true
					e.ExpertCounts[l]++
				}
			}
			if !here {
				continue
			}
			e.RankCounts[source]++
			switch w.layout {
			case PackedByRank:
				e.places = append(e.places, place{0, byRank, source, token, -1})
			case SlottedByRank:
				e.places = append(e.places, place{source, slot, source, token, -1})
			}
			byRank, slot = byRank+1, slot+1
		}
	}
	e.TrueRows[0], e.TrueRows[1] = int64(byRank), int64(byRank)

	if w.layout == PackedByExpert || w.layout == SlottedByExpert {
		next := 0
		for l := 0; l < local; l++ {
			slab := 0
			if w.layout == SlottedByExpert {
				slab, next = l, 0
			} else {
				e.ExpertOffsets = append(e.ExpertOffsets, int64(next))
			}
			for source := 0; source < w.ranks; source++ {
				begin := next
				for token := 0; token < w.tokens[source]; token++ {
					for k := 0; k < w.topk; k++ {
						if rank, to, ok := w.id(source, token, k); ok && rank == me && to == l {
							e.places = append(e.places, place{slab, next, source, token, k})
							next++
						}
					}
				}
				if w.layout == SlottedByExpert {
					e.SourceRanges[(l*w.ranks+source)*2] = int32(begin)
					e.SourceRanges[(l*w.ranks+source)*2+1] = int32(next - begin)
				}
			}
			for w.layout == PackedByExpert && next%w.alignment != 0 {
				e.pads = append(e.pads, next)
				next++
			}
		}
		if w.layout == PackedByExpert {
			e.ExpertOffsets = append(e.ExpertOffsets, int64(next))
			e.TrueRows[1] = int64(next)
		} else {
			e.TrueRows[1] = int64(len(e.places))
		}
	}
	w.describe(me, e)
	return e
}

// describe fills the arrays that say what each row is.
func (w *world) describe(me int, e *expected) {
	byExpert := w.layout == PackedByExpert || w.layout == SlottedByExpert
	per := w.topk
	if byExpert {
		per = 1
	}
	n := e.slabs * e.rows
	e.TopkIdx, e.TopkWeights, e.RowSource = make([]int32, n*per), make([]float32, n*per), make([]int64, n)
	for i := range e.TopkIdx {
		e.TopkIdx[i] = -1
	}
	for i := range e.RowSource {
		e.RowSource[i] = -1
	}
	for _, p := range e.places {
		at := p.slab*e.rows + p.row
		e.RowSource[at] = int64(p.source*w.maxTokens + p.token)
		for k := 0; k < w.topk; k++ {
			rank, local, ok := w.id(p.source, p.token, k)
			if !ok || rank != me || byExpert && k != p.k {
				continue
			}
			to := at
			if !byExpert {
				to = at*per + k
			}
			e.TopkIdx[to] = int32(local)
			e.TopkWeights[to] = w.weights[p.source][p.token*w.topk+k]
		}
	}
}

func (w *world) config() BufferConfig {
	config := BufferConfig{
		Layout: w.layout, MaxTokens: w.maxTokens, MaxRowBytes: w.hidden * 4, MaxScaleBytes: 64,
		NumExperts: w.experts, NumTopk: w.topk, ExpertRank: w.expertRank, Timeout: testTimeout, FirstTimeout: testTimeout,
	}
	if w.layout == PackedByExpert {
		config.ExpertAlignment = w.alignment
	}
	return config
}

// output is what the experts of a rank give for a token: random numbers that every rank can compute. In by-rank layouts
// k is -1.
func (w *world) output(dtype DType, rank, source, token, k int) []byte {
	seed := int64(((rank*64+source)*64+token)*64+k+1) * 7919
	row := make([]byte, w.hidden*dtype.Size())
	fillRows(rand.New(rand.NewSource(seed)), dtype, row)
	return row
}

// weight is a number that depends on a row in the same way.
func weight(kind, rank, source, token, k int) float32 {
	return float32(math.Sin(float64((((kind*64+rank)*64+source)*64+token)*64 + k + 1)))
}

// combination says how a combine is done.
type combination struct {
	dtype       DType
	exact       bool
	rowWeights  bool
	topkWeights bool
	ofDispatch  bool
	carried     bool
	biases      int
}

func (w *world) bias(dtype DType, me, which int) []byte {
	x := Aligned[byte](w.tokens[me] * w.hidden * dtype.Size())
	fillRows(rand.New(rand.NewSource(int64(100*me+which))), dtype, x)
	return x
}

// combine is the naive combine as rank `me` sees it.
func (w *world) combine(me int, c combination) (sums []byte, carried []float32) {
	size := c.dtype.Size()
	sums = make([]byte, w.tokens[me]*w.hidden*size)
	carried = make([]float32, w.tokens[me]*w.topk)
	bias := [][]byte{w.bias(c.dtype, me, 0), w.bias(c.dtype, me, 1)}[:c.biases]
	for token := 0; token < w.tokens[me]; token++ {
		row := sums[token*w.hidden*size : (token+1)*w.hidden*size]
		acc := make([]float32, w.hidden)
		for b := range bias {
			for i := range acc {
				if v := load(c.dtype, bias[b][token*w.hidden*size:], i); b == 0 {
					acc[i] = v
				} else {
					acc[i] += v
				}
			}
		}
		for _, term := range w.terms(me, token, c) {
			for i := range acc {
				if v := load(c.dtype, term.row, i); term.weighted {
					acc[i] = fma32(term.weight, v, acc[i])
				} else {
					acc[i] += v
				}
			}
		}
		for i := range acc {
			store(c.dtype, row, i, acc[i])
		}
		for k := 0; k < w.topk; k++ {
			if rank, _, ok := w.id(me, token, k); ok && c.carried {
				carried[token*w.topk+k] = weight(2, rank, me, token, k)
			}
		}
	}
	return sums, carried
}

// term is one row that reaches the token's rank, in the order of the sum.
type term struct {
	row      []byte
	weighted bool
	weight   float32
}

func (w *world) terms(me, token int, c combination) []term {
	scaled := func(row []byte, by float32) []byte {
		out := make([]byte, len(row))
		for i := 0; i < w.hidden; i++ {
			store(c.dtype, out, i, fma32(by, load(c.dtype, row, i), 0))
		}
		return out
	}
	var terms []term
	switch {
	case w.layout == PackedByRank || w.layout == SlottedByRank: // ascending rank
		for rank := 0; rank < w.ranks; rank++ {
			for k := 0; k < w.topk; k++ {
				if r, _, ok := w.id(me, token, k); ok && r == rank {
					row := w.output(c.dtype, rank, me, token, -1)
					if c.rowWeights {
						row = scaled(row, weight(0, rank, me, token, -1))
					}
					terms = append(terms, term{row: row})
					break
				}
			}
		}
	case c.exact: // ascending k
		for k := 0; k < w.topk; k++ {
			rank, _, ok := w.id(me, token, k)
			if !ok {
				continue
			}
			t := term{row: w.output(c.dtype, rank, me, token, k), weighted: c.topkWeights || c.ofDispatch}
			if c.rowWeights {
				t.row = scaled(t.row, weight(0, rank, me, token, k))
			}
			t.weight = w.weights[me][token*w.topk+k]
			if c.topkWeights {
				t.weight = weight(1, 0, me, token, k)
			}
			terms = append(terms, t)
		}
	default: // one partial sum per rank, in ascending order of the largest k there
		for last := 0; last < w.topk; last++ {
			rank, _, ok := w.id(me, token, last)
			for k := last + 1; ok && k < w.topk; k++ {
				if r, _, also := w.id(me, token, k); also && r == rank {
					ok = false
				}
			}
			if !ok {
				continue
			}
			acc := make([]float32, w.hidden)
			for k := 0; k <= last; k++ {
				if r, _, also := w.id(me, token, k); !also || r != rank {
					continue
				}
				row := w.output(c.dtype, rank, me, token, k)
				for i := range acc {
					switch v := load(c.dtype, row, i); {
					case c.rowWeights:
						acc[i] = fma32(weight(0, rank, me, token, k), v, acc[i])
					case c.ofDispatch:
						acc[i] = fma32(w.weights[me][token*w.topk+k], v, acc[i])
					default:
						acc[i] += v
					}
				}
			}
			partial := make([]byte, w.hidden*c.dtype.Size())
			for i := range acc {
				store(c.dtype, partial, i, acc[i])
			}
			terms = append(terms, term{row: partial})
		}
	}
	return terms
}
