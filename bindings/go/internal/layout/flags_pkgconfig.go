//go:build !deepep_intree

package layout

// #cgo pkg-config: deepep
import "C"
