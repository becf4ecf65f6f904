package deepep

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Error is what a failing call returns.
type Error struct {
	Status Status
	Msg    string // function, argument, value, limit, remedy
	cause  error  // what the caller's own all-gather returned
}

// One for each status, for errors.Is.
var (
	ErrInvalidArgument  error = &Error{Status: StatusInvalidArgument}
	ErrInvalidState     error = &Error{Status: StatusInvalidState}
	ErrCapacityExceeded error = &Error{Status: StatusCapacityExceeded}
	ErrUnsupported      error = &Error{Status: StatusUnsupported}
	ErrABIMismatch      error = &Error{Status: StatusABIMismatch}
	ErrConfigMismatch   error = &Error{Status: StatusConfigMismatch}
	ErrBusy             error = &Error{Status: StatusBusy}
	ErrConcurrentUse    error = &Error{Status: StatusConcurrentUse}
	ErrInvalidExpertID  error = &Error{Status: StatusInvalidExpertID}
	ErrNoDriver         error = &Error{Status: StatusNoDriver}
	ErrDriverTooOld     error = &Error{Status: StatusDriverTooOld}
	ErrNoDevice         error = &Error{Status: StatusNoDevice}
	ErrNoKernelImage    error = &Error{Status: StatusNoKernelImage}
	ErrOutOfMemory      error = &Error{Status: StatusOutOfMemory}
	ErrPeerUnreachable  error = &Error{Status: StatusPeerUnreachable}
	ErrCUDA             error = &Error{Status: StatusCUDA}
	ErrSystem           error = &Error{Status: StatusSystem}
	ErrTimeout          error = &Error{Status: StatusTimeout}
	ErrPeerFailed       error = &Error{Status: StatusPeerFailed}
	ErrAborted          error = &Error{Status: StatusAborted}
	ErrOpMismatch       error = &Error{Status: StatusOpMismatch}
	ErrInternal         error = &Error{Status: StatusInternal}
	ErrPanic            error = &Error{Status: StatusPanic}
)

// Error names the status and what the library said.
func (e *Error) Error() string {
	text := "deepep: " + e.Status.String()
	if e.Msg != "" {
		text += ": " + e.Msg
	}
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Is reports whether target is the sentinel of the same status.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Msg == "" && t.Status == e.Status
}

// Unwrap returns the error of the caller's all-gather, if that is what failed.
func (e *Error) Unwrap() error { return e.cause }

// failure turns the outcome of a wrapper into an error and frees its text.
func failure(outcome C.deepep_go_outcome) error {
	if outcome.status == C.DEEP_EP_SUCCESS {
		return nil
	}
	e := &Error{Status: Status(outcome.status)}
	if outcome.text != nil {
		e.Msg = C.GoString(outcome.text)
		C.free(unsafe.Pointer(outcome.text))
	}
	return e
}

// invalid is an argument that the binding refuses itself.
func invalid(format string, args ...interface{}) error {
	return &Error{Status: StatusInvalidArgument, Msg: fmt.Sprintf(format, args...)}
}
