// Package deepep exchanges the rows of a mixture-of-experts layer between the ranks of a group: dispatch sends each
// token's row to the ranks that own its experts, combine brings the expert outputs back and sums them in token order.
// It is a thin layer over the C library libdeepep.
//
// A [Comm] is one rank's place in a group, a [Buffer] is memory that the group shares, a [Handle] holds the routing of
// one dispatch. The operations of one buffer (dispatch, combine, barrier, and also release, combine input and the
// closing of a handle) come in the same order on all ranks. On the host backend each operation blocks its goroutine
// until the peers have done their part, so every rank runs in a goroutine or process of its own.
//
// # Building
//
// The package is built against an installed libdeepep, found by pkg-config:
//
//	PKG_CONFIG_PATH=PREFIX/lib/pkgconfig go build
//	LD_LIBRARY_PATH=PREFIX/lib ./program
//
// The variables are for a PREFIX that the system does not search. The module cannot be fetched by its name, so a
// program's go.mod names the folder:
//
//	require deepep v0.0.0
//	replace deepep => /path/to/libdeepep/bindings/go
//
// With the build tag deepep_intree nothing is looked up, and CGO_CFLAGS and CGO_LDFLAGS say where things are; the
// script test.sh beside this file does that for a source tree.
//
// # Memory
//
// Go slices are lent to the library for the length of one call only; no call keeps them. Where a slice or the Data of
// [Rows] is left nil, the rows are "in place": the result is a slice over memory of the library. Such slices hold
//
//   - X and Scales of [Received]: until the handle's next combine, release or close;
//   - everything else of [Received]: until the handle's next dispatch or close;
//   - what [Handle.CombineInput] returns: until that handle's next combine;
//   - and nothing longer than the buffer. Copy what is needed later: the garbage collector does not know these slices.
//
// Rows start at multiples of 16 bytes. A slice from make of at least 16 bytes and a multiple of 16 does; [Aligned]
// makes one of any length.
//
// Memory that is not Go's, for instance of a CUDA device, is given as an address of type uintptr in the Addr fields,
// and streams as unsafe.Pointer (nil on the host).
//
// # Errors
//
// Every failing call returns an [*Error] with the library's status and text; errors.Is(err, deepep.ErrTimeout) and its
// like tell what it was. Nothing panics. A call that needs exclusive use of an object is refused with
// [ErrConcurrentUse] while another one runs, and calls on a closed object with [ErrInvalidState]; both leave the
// library untouched.
//
// Close gives an object back, never waits for peers and may be repeated. An object that is lost without it is given
// back by the garbage collector, later and without any effect on other ranks; a lost handle goes with its buffer.
package deepep
