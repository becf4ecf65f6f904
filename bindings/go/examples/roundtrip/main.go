// Roundtrip sends every token to its two experts and back, over four ranks in one process.
package main

import (
	"deepep"
	"log"
)

const ranks, tokens, hidden = 4, 3, 64

func main() {
	comms, err := deepep.JoinLocal(deepep.CommConfig{NumRanks: ranks}, nil)
	check(err)
	buffers, err := deepep.NewBuffersLocal(comms, deepep.BufferConfig{
		Layout: deepep.PackedByExpert, MaxTokens: tokens, MaxRowBytes: hidden * 4, NumExperts: 8, NumTopk: 2})
	check(err)
	done := make(chan bool)
	for _, buffer := range buffers {
		go rank(buffer, done)
	}
	for range buffers {
		<-done
	}
	log.Print("4 ranks: every token came back as the sum of its experts")
}

func rank(buffer *deepep.Buffer, done chan bool) {
	handle, err := buffer.NewHandle()
	check(err)
	x := make([]float32, tokens*hidden)
	for i := range x {
		x[i] = float32(buffer.Comm().Rank() + i)
	}
	in := &deepep.DispatchIn{X: deepep.RowsOf(deepep.FP32, x, hidden), TopkIdx: []int32{0, 7, 2, 5, 6, 1}}
	got, err := handle.Dispatch(in, nil, nil)
	check(err)
	for row := 0; row < int(got.ExpertOffsets[len(got.ExpertOffsets)-1]); row++ {
		expert := buffer.LocalExperts()[got.TopkIdx[row]]
		y := deepep.View[float32](got.X.Row(0, row))
		for i := range y {
			y[i] *= float32(expert)
		}
	}
	sums := deepep.CombineOut{X: deepep.RowsOf(deepep.FP32, make([]float32, tokens*hidden), hidden)}
	check(handle.Combine(&deepep.CombineIn{X: got.X}, &sums, nil))
	for i, v := range deepep.View[float32](sums.X.Data) {
		if v != x[i]*7 { // 0 + 7, 2 + 5, 6 + 1
			log.Fatalf("element %d is %v, want %v", i, v, x[i]*7)
		}
	}
	check(handle.Close())
	check(buffer.Close())
	done <- true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
