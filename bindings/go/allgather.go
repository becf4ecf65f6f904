package deepep

// #include <stddef.h>
// #include <stdint.h>
import "C"

import (
	"fmt"
	"runtime/cgo"
	"unsafe"
)

// Allgather is the caller's way to bring ranks together: it puts every rank's mine, all of the same length, into all in
// rank order. It runs on the goroutine that is inside [JoinWith], and must not keep the slices.
type Allgather func(mine, all []byte) error

// gathering is one all-gather in use, and what it returned or panicked with.
type gathering struct {
	gather   Allgather
	numRanks int
	err      error
}

func (g *gathering) run(mine, all []byte) {
	defer func() {
		if r := recover(); r != nil {
			g.err = fmt.Errorf("the all-gather panicked: %v", r)
		}
	}()
	g.err = g.gather(mine, all)
}

//export deepepGoAllgather
func deepepGoAllgather(context C.uintptr_t, mine, all unsafe.Pointer, bytesPerRank C.size_t) C.int32_t {
	g, ok := cgo.Handle(context).Value().(*gathering)
	if !ok {
		return 1
	}
	n := int(bytesPerRank)
	g.run(unsafe.Slice((*byte)(mine), n), unsafe.Slice((*byte)(all), n*g.numRanks))
	if g.err != nil {
		return 1
	}
	return 0
}
