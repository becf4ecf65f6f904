package deepep

// #include "shim.h"
import "C"

import (
	"encoding/hex"
	"unsafe"
)

// UniqueID tells the ranks of one group where to meet and proves that they belong together. It holds a secret.
type UniqueID [128]byte

// NewUniqueID draws a unique id on one rank; carry it to the others by any means. The address is "" for a meeting point
// on this machine that needs no name, "HOST:PORT" for TCP, or "unix:/PATH" or "unix:@NAME" for a Unix socket. Nothing
// is bound before rank 0 joins.
func NewUniqueID(address string) (UniqueID, error) {
	var id UniqueID
	text := C.CString(address)
	defer C.free(unsafe.Pointer(text))
	err := failure(C.deepep_go_unique_id_create(text, (*C.deep_ep_unique_id_t)(unsafe.Pointer(&id))))
	return id, err
}

// MarshalText writes the id in hexadecimal, for an environment variable, a file or JSON.
func (id UniqueID) MarshalText() ([]byte, error) {
	text := make([]byte, hex.EncodedLen(len(id)))
	hex.Encode(text, id[:])
	return text, nil
}

// UnmarshalText reads what MarshalText wrote.
func (id *UniqueID) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(id)) {
		return invalid("a unique id has %d hexadecimal digits, not %d", hex.EncodedLen(len(id)), len(text))
	}
	var read UniqueID
	if _, err := hex.Decode(read[:], text); err != nil {
		return invalid("a unique id has only hexadecimal digits: %v", err)
	}
	*id = read
	return nil
}
