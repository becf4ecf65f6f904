package deepep

import (
	"encoding/binary"
	"math"
	"testing"
)

// Plain conversions and sums, written for clarity: what the library's bytes are compared with.

// round64 rounds an exact sum or product of float32 values, held as hi + lo, once to float32: hi is moved to an odd
// last bit where lo is not zero, so that the second rounding cannot go wrong.
func round64(hi, lo float64) float32 {
	if lo != 0 && math.Float64bits(hi)&1 == 0 && !math.IsInf(hi, 0) {
		toward := math.Inf(1)
		if lo < 0 {
			toward = math.Inf(-1)
		}
		hi = math.Nextafter(hi, toward)
	}
	return float32(hi)
}

// fma32 is a*b + c with one rounding.
func fma32(a, b, c float32) float32 {
	p, q := float64(a)*float64(b), float64(c) // the product is exact
	s := p + q
	back := s - p
	return round64(s, (p-(s-back))+(q-back))
}

func bf16(f float32) uint16 {
	u := math.Float32bits(f)
	if f != f {
		return 0x7FFF
	}
	return uint16((u + 0x7FFF + u>>16&1) >> 16)
}

func fromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

func load(dtype DType, row []byte, i int) float32 {
	if dtype == BF16 {
		return fromBF16(binary.LittleEndian.Uint16(row[2*i:]))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
}

func store(dtype DType, row []byte, i int, f float32) {
	switch {
	case dtype == BF16:
		binary.LittleEndian.PutUint16(row[2*i:], bf16(f))
	case f != f:
		binary.LittleEndian.PutUint32(row[4*i:], 0x7FFFFFFF)
	default:
		binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(f))
	}
}

// e4m3 is the value of a positive code.
func e4m3(code int) float64 {
	exponent, mantissa := code>>3, float64(code&7)
	if exponent == 0 {
		return math.Ldexp(mantissa, -9)
	}
	return math.Ldexp(8+mantissa, exponent-10)
}

// toE4M3 rounds to the nearest code, ties to even, and saturates.
func toE4M3(f float32) byte {
	if f != f {
		return 0x7F
	}
	sign := byte(math.Float32bits(f) >> 24 & 0x80)
	v := math.Abs(float64(f))
	best := 0
	for code := 1; code <= 0x7E; code++ {
		near, nearest := math.Abs(e4m3(code)-v), math.Abs(e4m3(best)-v)
		if near < nearest || near == nearest && code%2 == 0 {
			best = code
		}
	}
	if v >= 448 {
		best = 0x7E
	}
	return sign | byte(best)
}

// castFP8 casts a row of floats in blocks of 128, with one float scale per block.
func castFP8(row []float32) (codes, scales []byte) {
	codes = make([]byte, len(row))
	for begin := 0; begin < len(row); begin += 128 {
		end := begin + 128
		if end > len(row) {
			end = len(row)
		}
		a := float32(1e-4)
		for _, f := range row[begin:end] {
			if abs := float32(math.Abs(float64(f))); abs > a && !math.IsInf(float64(abs), 0) {
				a = abs
			}
		}
		scale := a * (float32(1) / 448)
		inverse := 448 / a
		for i, f := range row[begin:end] {
			codes[begin+i] = toE4M3(f * inverse)
		}
		scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(scale))
	}
	return codes, scales
}

func TestReferenceNumbers(t *testing.T) {
	for _, c := range []struct {
		f    float32
		want uint16
	}{{1, 0x3F80}, {-2, 0xC000}, {1.00390625, 0x3F80}, {1.01171875, 0x3F82}, {float32(math.NaN()), 0x7FFF}} {
		if got := bf16(c.f); got != c.want {
			t.Errorf("bf16(%v) = %#x, want %#x", c.f, got, c.want)
		}
	}
	for f, want := range map[float32]byte{0: 0, 1: 0x38, 448: 0x7E, 1e9: 0x7E, -1.0625: 0xB8, 0x1p-9: 1, 0x1p-10: 0} {
		if got := toE4M3(f); got != want {
			t.Errorf("toE4M3(%v) = %#x, want %#x", f, got, want)
		}
	}
	// (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 is a tie in float32; what is added decides, far below float64's precision.
	a := float32(1 + 0x1p-12)
	if got, want := fma32(a, a, 0x1p-100), float32(1+0x1p-11+0x1p-23); got != want {
		t.Errorf("fma32 up: %v, want %v", got, want)
	}
	if got, want := fma32(a, a, -0x1p-100), float32(1+0x1p-11); got != want {
		t.Errorf("fma32 down: %v, want %v", got, want)
	}
}
