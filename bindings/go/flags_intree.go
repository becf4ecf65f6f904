//go:build deepep_intree

package deepep

// CGO_CFLAGS and CGO_LDFLAGS say where the header and the library are.

// #cgo LDFLAGS: -ldeepep
import "C"
