package deepep

// #include "shim.h"
import "C"

import (
	"math"
	"time"
	"unsafe"
)

var nowhere = C.deepep_go_nowhere()

// narrow turns Go numbers into the narrower ones of the C structs and remembers the first that does not fit.
type narrow struct{ err error }

func (n *narrow) int32(name string, v int) C.int32_t {
	if (v < math.MinInt32 || v > math.MaxInt32) && n.err == nil {
		n.err = invalid("%s is %d, which does not fit in 32 bits", name, v)
	}
	return C.int32_t(v)
}

// milliseconds are rounded up, so that a short time is not "choose for me".
func (n *narrow) milliseconds(name string, d time.Duration) C.uint32_t {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	if (d < 0 || ms > math.MaxUint32) && n.err == nil {
		n.err = invalid("%s is %v; it must be from 0 to %d ms", name, d, uint32(math.MaxUint32))
	}
	return C.uint32_t(ms)
}

// address is what a C struct holds where it gets no pointer into data: memory elsewhere, nowhere for an empty slice,
// or null.
func address(data []byte, addr uintptr) C.uintptr_t {
	switch {
	case len(data) > 0:
		return 0
	case addr != 0:
		return C.uintptr_t(addr)
	case data != nil:
		return nowhere
	}
	return 0
}

func bytePointer(s []byte) *C.uint8_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.uint8_t)(unsafe.Pointer(&s[0]))
}

func int32Pointer(s []int32) *C.int32_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.int32_t)(unsafe.Pointer(&s[0]))
}

func int64Pointer(s []int64) *C.int64_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.int64_t)(unsafe.Pointer(&s[0]))
}

func floatPointer(s []float32) *C.float {
	if len(s) == 0 {
		return nil
	}
	return (*C.float)(unsafe.Pointer(&s[0]))
}

// long refuses a slice that is given and shorter than what the library reads or writes there.
func long(name string, have, need int) error {
	if have > 0 && have < need {
		return invalid("%s has %d elements, but needs %d", name, have, need)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
