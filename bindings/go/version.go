package deepep

// #include "shim.h"
import "C"

// The version of the header this package was built with.
const (
	VersionMajor = C.DEEP_EP_VERSION_MAJOR
	VersionMinor = C.DEEP_EP_VERSION_MINOR
	VersionPatch = C.DEEP_EP_VERSION_PATCH
)

// LibraryVersion is the version of the loaded library: major * 10000 + minor * 100 + patch.
func LibraryVersion() uint32 { return uint32(C.deep_ep_version()) }
