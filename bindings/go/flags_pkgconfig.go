//go:build !deepep_intree

package deepep

// #cgo pkg-config: deepep
import "C"
