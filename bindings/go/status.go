package deepep

// #include "shim.h"
import "C"

// Status is the result of a call. 0 is success; the groups say whose turn it is: 1-19 the caller, 20-39 the
// environment, 40-59 a subsystem, 60-79 peers and time, 90-99 the library itself.
type Status int32

// The statuses of the library.
const (
	StatusSuccess          Status = C.DEEP_EP_SUCCESS
	StatusInvalidArgument  Status = C.DEEP_EP_INVALID_ARGUMENT
	StatusInvalidState     Status = C.DEEP_EP_INVALID_STATE
	StatusCapacityExceeded Status = C.DEEP_EP_CAPACITY_EXCEEDED
	StatusUnsupported      Status = C.DEEP_EP_UNSUPPORTED
	StatusABIMismatch      Status = C.DEEP_EP_ABI_MISMATCH
	StatusConfigMismatch   Status = C.DEEP_EP_CONFIG_MISMATCH
	StatusBusy             Status = C.DEEP_EP_BUSY
	StatusConcurrentUse    Status = C.DEEP_EP_CONCURRENT_USE
	StatusInvalidExpertID  Status = C.DEEP_EP_INVALID_EXPERT_ID
	StatusNoDriver         Status = C.DEEP_EP_NO_DRIVER
	StatusDriverTooOld     Status = C.DEEP_EP_DRIVER_TOO_OLD
	StatusNoDevice         Status = C.DEEP_EP_NO_DEVICE
	StatusNoKernelImage    Status = C.DEEP_EP_NO_KERNEL_IMAGE
	StatusOutOfMemory      Status = C.DEEP_EP_OUT_OF_MEMORY
	StatusPeerUnreachable  Status = C.DEEP_EP_PEER_UNREACHABLE
	StatusCUDA             Status = C.DEEP_EP_CUDA
	StatusSystem           Status = C.DEEP_EP_SYSTEM
	StatusTimeout          Status = C.DEEP_EP_TIMEOUT
	StatusPeerFailed       Status = C.DEEP_EP_PEER_FAILED
	StatusAborted          Status = C.DEEP_EP_ABORTED
	StatusOpMismatch       Status = C.DEEP_EP_OP_MISMATCH
	StatusInternal         Status = C.DEEP_EP_INTERNAL
	StatusPanic            Status = C.DEEP_EP_PANIC
)

// String is the library's name of the status.
func (s Status) String() string {
	return C.GoString(C.deep_ep_status_string(C.int32_t(s)))
}
