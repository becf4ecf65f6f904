package deepep

// #include "shim.h"
import "C"

import (
	"math/bits"
	"unsafe"
)

// Element is what slices of rows may be made of: uint16 for BF16 and FP16, float32, byte for FP8 and opaque rows.
type Element interface {
	~uint8 | ~int8 | ~uint16 | ~int16 | ~uint32 | ~int32 | ~uint64 | ~int64 | ~float32 | ~float64
}

// Rows is a matrix of rows, or in slotted layouts one slab of rows for each source or local expert. The zero value is
// "in place" for outputs and combine inputs.
type Rows struct {
	Data []byte  // host memory; it starts at a multiple of 16
	Addr uintptr // memory that is not Go's, where Data is empty

	DType  DType
	Hidden int // elements per row; outputs of a dispatch and combine inputs may leave 0
	Rows   int // how many rows fit: in slotted layouts per slab (outputs of a dispatch, inputs of a combine), else in all

	RowStride  int // bytes from one row to the next; 0: no gap
	SlotStride int // bytes from one slab to the next; 0: no gap
}

// Scales lie beside rows. The zero value is "none" for inputs and "in place" for outputs.
type Scales struct {
	Data []byte  // host memory; it starts at a multiple of 4
	Addr uintptr // memory that is not Go's, where Data is empty

	DType ScaleDType
	Block int // elements per scale; 0: 128. ScaleOpaque: bytes per row

	RowStride  int // bytes from one row's scales to the next row's; 0: no gap (inputs), the library's padding (in place)
	ColStride  int // bytes from one scale of a row to its next; 0 or 4: row-major, else column-major
	SlotStride int // bytes from one slab to the next; 0: no gap
}

// RowsOf describes a slice as rows of hidden elements without gaps. An empty slice is no rows, not "in place".
func RowsOf[T Element](dtype DType, data []T, hidden int) Rows {
	r := Rows{Data: Bytes(data), DType: dtype, Hidden: hidden}
	if r.Data == nil {
		r.Data = []byte{}
	}
	if row := r.rowBytes(); row > 0 {
		r.Rows = len(r.Data) / row
	}
	return r
}

// Slabs divides the rows into n slabs of equal size, as slotted layouts have them.
func (r Rows) Slabs(n int) Rows {
	if n > 0 {
		r.Rows /= n
	}
	return r
}

// Row is row i of a slab; packed layouts have only slab 0. It is nil where there is no such row in Data.
func (r Rows) Row(slab, i int) []byte {
	size, row, slot := r.strides()
	begin := slab*slot + i*row
	if slab < 0 || i < 0 || i >= r.Rows || size <= 0 || begin < 0 || begin+size > len(r.Data) {
		return nil
	}
	return r.Data[begin : begin+size : begin+size]
}

// Bytes is the memory of a slice as bytes.
func Bytes[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// View is bytes as a slice of T over the same memory; nil where the bytes are not aligned for T.
func View[T Element](b []byte) []T {
	var t T
	n := len(b) / int(unsafe.Sizeof(t))
	if n == 0 || uintptr(unsafe.Pointer(&b[0]))%unsafe.Alignof(t) != 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

// Aligned makes a slice of n elements that starts at a multiple of 16 bytes.
func Aligned[T Element](n int) []T {
	var t T
	size := int(unsafe.Sizeof(t))
	if n <= 0 {
		return nil
	}
	s := make([]T, n+16/size)
	skip := int(-uintptr(unsafe.Pointer(&s[0]))%16) / size
	return s[skip : skip+n : skip+n]
}

func (r Rows) rowBytes() int { return r.Hidden * r.DType.Size() }

// strides are the bytes of a row, from row to row and from slab to slab.
func (r Rows) strides() (size, row, slot int) {
	size, row, slot = r.rowBytes(), r.RowStride, r.SlotStride
	if row == 0 {
		row = size
	}
	if slot == 0 {
		slot = r.Rows * row
	}
	return size, row, slot
}

// check refuses rows that do not lie inside Data.
func (r Rows) check(name string, slabs int) error {
	if r.Data == nil || (len(r.Data) == 0 && r.Addr != 0) {
		return nil
	}
	if r.Hidden < 0 || r.Rows < 0 || r.RowStride < 0 || r.SlotStride < 0 {
		return invalid("%s: hidden %d, rows %d, strides %d and %d; none may be negative", name, r.Hidden, r.Rows,
			r.RowStride, r.SlotStride)
	}
	if r.Rows == 0 || slabs == 0 {
		return nil
	}
	size, row, slot := r.strides()
	need, fits := sum(product(slabs-1, slot), product(r.Rows-1, row), extent{size, true})
	if !fits || need > len(r.Data) {
		return invalid("%s.Data has %d bytes, but %d slabs of %d rows of %d bytes with strides %d and %d take %d", name,
			len(r.Data), slabs, r.Rows, size, row, slot, need)
	}
	return nil
}

func (r Rows) c() C.deep_ep_rows_t {
	return C.deep_ep_rows_t{
		rows: C.int64_t(r.Rows), row_stride: C.int64_t(r.RowStride), slot_stride: C.int64_t(r.SlotStride),
		dtype: C.uint32_t(r.DType),
	}
}

// rowsAt is what the library says about rows, over its own memory (host) or at an address (device). Rows of the caller
// have data null and keep their own.
func rowsAt(c *C.deep_ep_rows_t, own Rows, hidden, slabs int, host bool) Rows {
	r := Rows{
		DType: DType(c.dtype), Hidden: hidden, Rows: int(c.rows), RowStride: int(c.row_stride),
		SlotStride: int(c.slot_stride),
	}
	if c.data == nil {
		r.Data, r.Addr = own.Data, own.Addr
		return r
	}
	size, row, slot := r.strides()
	if host && r.Rows > 0 && slabs > 0 && size > 0 {
		r.Data = unsafe.Slice((*byte)(c.data), (slabs-1)*slot+(r.Rows-1)*row+size)
	} else {
		r.Addr = uintptr(c.data)
	}
	return r
}

// columns is the number of 4-byte scales of a row.
func (s Scales) columns(hidden int) int {
	block := s.Block
	if s.DType == ScaleOpaque {
		return (block + 3) / 4
	}
	if block <= 0 {
		block = 128
	}
	blocks := (hidden + block - 1) / block
	if s.DType == ScaleUE8M0Packed {
		return (blocks + 3) / 4
	}
	return blocks
}

// strides are the bytes from row to row, from scale to scale and from slab to slab.
func (s Scales) strides(rows, columns int) (row, col, slot int) {
	row, col, slot = s.RowStride, s.ColStride, s.SlotStride
	columnMajor := col != 0 && col != 4
	if col == 0 {
		col = 4
	}
	if row == 0 {
		row = 4 * columns
		if columnMajor {
			row = 4
		}
	}
	if slot == 0 {
		slot = rows * row
		if columnMajor {
			slot = columns * col
		}
	}
	return row, col, slot
}

// check refuses scales that do not lie inside Data.
func (s Scales) check(name string, rows, hidden, slabs int) error {
	if s.Data == nil || (len(s.Data) == 0 && s.Addr != 0) {
		return nil
	}
	if s.RowStride < 0 || s.ColStride < 0 || s.SlotStride < 0 {
		return invalid("%s: strides %d, %d and %d; none may be negative", name, s.RowStride, s.ColStride, s.SlotStride)
	}
	columns := s.columns(hidden)
	if rows <= 0 || slabs <= 0 || columns <= 0 {
		return nil
	}
	row, col, slot := s.strides(rows, columns)
	need, fits := sum(product(slabs-1, slot), product(rows-1, row), product(columns-1, col), extent{4, true})
	if !fits || need > len(s.Data) {
		return invalid("%s.Data has %d bytes, but %d slabs of %d rows of %d scales with strides %d, %d and %d take %d",
			name, len(s.Data), slabs, rows, columns, slot, row, col, need)
	}
	return nil
}

func (s Scales) c(n *narrow) C.deep_ep_scales_t {
	return C.deep_ep_scales_t{
		row_stride: C.int64_t(s.RowStride), col_stride: C.int64_t(s.ColStride), slot_stride: C.int64_t(s.SlotStride),
		dtype: C.uint32_t(s.DType), block: n.int32("Scales.Block", s.Block),
	}
}

func scalesAt(c *C.deep_ep_scales_t, own Scales, rows, hidden, slabs int, host bool) Scales {
	s := Scales{
		DType: ScaleDType(c.dtype), Block: int(c.block), RowStride: int(c.row_stride), ColStride: int(c.col_stride),
		SlotStride: int(c.slot_stride),
	}
	if c.data == nil {
		s.Data, s.Addr = own.Data, own.Addr
		return s
	}
	columns := s.columns(hidden)
	row, col, slot := s.strides(rows, columns)
	if host && rows > 0 && slabs > 0 && columns > 0 {
		s.Data = unsafe.Slice((*byte)(c.data), (slabs-1)*slot+(rows-1)*row+(columns-1)*col+4)
	} else {
		s.Addr = uintptr(c.data)
	}
	return s
}

// extent is a number of bytes, and whether it fits in an int.
type extent struct {
	bytes int
	fits  bool
}

func product(a, b int) extent {
	high, low := bits.Mul64(uint64(a), uint64(b))
	return extent{int(low), high == 0 && low < 1<<63}
}

func sum(parts ...extent) (int, bool) {
	total, fits := 0, true
	for _, part := range parts {
		total += part.bytes
		fits = fits && part.fits && total >= 0
	}
	return total, fits
}
