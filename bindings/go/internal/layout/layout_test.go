package layout

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"deepep"
)

// TestLayoutsAndConstants compares cgo's structs and the package's constants with what a C program says.
func TestLayoutsAndConstants(t *testing.T) {
	root := filepath.Join("..", "..", "..", "..")
	source := filepath.Join(root, "tests", "c", "layout.c")
	if _, err := os.Stat(source); err != nil {
		t.Skipf("outside the source tree: %v", err)
	}
	probe := filepath.Join(t.TempDir(), "layout")
	cc := exec.Command("cc", "-I"+filepath.Join(root, "include"), source, "-o", probe)
	if text, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cc.Args, err, text)
	}
	text, err := exec.Command(probe).Output()
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Structs   map[string]Struct `json:"structs"`
		Constants map[string]int64  `json:"constants"`
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}

	have := Structs()
	if len(have) != len(want.Structs) {
		t.Errorf("%d structs, the probe has %d", len(have), len(want.Structs))
	}
	for name, s := range want.Structs {
		if !reflect.DeepEqual(have[name], s) {
			t.Errorf("%s: Go has %v, C has %v", name, have[name], s)
		}
	}

	for name, value := range constants {
		c, ok := want.Constants[name]
		if !ok || c != value {
			t.Errorf("%s: Go has %d, C has %d (there: %v)", name, value, c, ok)
		}
		delete(want.Constants, name)
	}
	for name := range want.Constants {
		switch name {
		case "DEEP_EP_BUFFER_REFUSE_BAD_IDS", "DEEP_EP_BUFFER_TRACE", "DEEP_EP_DISPATCH_CACHED",
			"DEEP_EP_COMBINE_EXACT", "DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH": // bool fields in Go
		default:
			t.Errorf("%s is not in the Go package", name)
		}
	}
}

var constants = map[string]int64{
	"DEEP_EP_VERSION_MAJOR":      deepep.VersionMajor,
	"DEEP_EP_VERSION_MINOR":      deepep.VersionMinor,
	"DEEP_EP_VERSION_PATCH":      deepep.VersionPatch,
	"DEEP_EP_SUCCESS":            int64(deepep.StatusSuccess),
	"DEEP_EP_INVALID_ARGUMENT":   int64(deepep.StatusInvalidArgument),
	"DEEP_EP_INVALID_STATE":      int64(deepep.StatusInvalidState),
	"DEEP_EP_CAPACITY_EXCEEDED":  int64(deepep.StatusCapacityExceeded),
	"DEEP_EP_UNSUPPORTED":        int64(deepep.StatusUnsupported),
	"DEEP_EP_ABI_MISMATCH":       int64(deepep.StatusABIMismatch),
	"DEEP_EP_CONFIG_MISMATCH":    int64(deepep.StatusConfigMismatch),
	"DEEP_EP_BUSY":               int64(deepep.StatusBusy),
	"DEEP_EP_CONCURRENT_USE":     int64(deepep.StatusConcurrentUse),
	"DEEP_EP_INVALID_EXPERT_ID":  int64(deepep.StatusInvalidExpertID),
	"DEEP_EP_NO_DRIVER":          int64(deepep.StatusNoDriver),
	"DEEP_EP_DRIVER_TOO_OLD":     int64(deepep.StatusDriverTooOld),
	"DEEP_EP_NO_DEVICE":          int64(deepep.StatusNoDevice),
	"DEEP_EP_NO_KERNEL_IMAGE":    int64(deepep.StatusNoKernelImage),
	"DEEP_EP_OUT_OF_MEMORY":      int64(deepep.StatusOutOfMemory),
	"DEEP_EP_PEER_UNREACHABLE":   int64(deepep.StatusPeerUnreachable),
	"DEEP_EP_CUDA":               int64(deepep.StatusCUDA),
	"DEEP_EP_SYSTEM":             int64(deepep.StatusSystem),
	"DEEP_EP_TIMEOUT":            int64(deepep.StatusTimeout),
	"DEEP_EP_PEER_FAILED":        int64(deepep.StatusPeerFailed),
	"DEEP_EP_ABORTED":            int64(deepep.StatusAborted),
	"DEEP_EP_OP_MISMATCH":        int64(deepep.StatusOpMismatch),
	"DEEP_EP_INTERNAL":           int64(deepep.StatusInternal),
	"DEEP_EP_PANIC":              int64(deepep.StatusPanic),
	"DEEP_EP_BACKEND_AUTO":       int64(deepep.BackendAuto),
	"DEEP_EP_BACKEND_HOST":       int64(deepep.BackendHost),
	"DEEP_EP_BACKEND_CUDA":       int64(deepep.BackendCUDA),
	"DEEP_EP_PACKED_BY_RANK":     int64(deepep.PackedByRank),
	"DEEP_EP_PACKED_BY_EXPERT":   int64(deepep.PackedByExpert),
	"DEEP_EP_SLOTTED_BY_RANK":    int64(deepep.SlottedByRank),
	"DEEP_EP_SLOTTED_BY_EXPERT":  int64(deepep.SlottedByExpert),
	"DEEP_EP_SYNC_AUTO":          int64(deepep.SyncAuto),
	"DEEP_EP_SYNC_ACK":           int64(deepep.SyncAck),
	"DEEP_EP_SYNC_BARRIER":       int64(deepep.SyncBarrier),
	"DEEP_EP_DTYPE_NONE":         int64(deepep.DTypeNone),
	"DEEP_EP_BF16":               int64(deepep.BF16),
	"DEEP_EP_FP16":               int64(deepep.FP16),
	"DEEP_EP_FP32":               int64(deepep.FP32),
	"DEEP_EP_FP8_E4M3":           int64(deepep.FP8E4M3),
	"DEEP_EP_OPAQUE":             int64(deepep.Opaque),
	"DEEP_EP_INT32":              int64(deepep.Int32),
	"DEEP_EP_INT64":              int64(deepep.Int64),
	"DEEP_EP_SCALE_NONE":         int64(deepep.ScaleNone),
	"DEEP_EP_SCALE_FP32":         int64(deepep.ScaleFP32),
	"DEEP_EP_SCALE_FP32_POW2":    int64(deepep.ScaleFP32Pow2),
	"DEEP_EP_SCALE_UE8M0_PACKED": int64(deepep.ScaleUE8M0Packed),
	"DEEP_EP_SCALE_OPAQUE":       int64(deepep.ScaleOpaque),
	"DEEP_EP_OPERATION_NONE":     int64(deepep.OperationNone),
	"DEEP_EP_OPERATION_DISPATCH": int64(deepep.OperationDispatch),
	"DEEP_EP_OPERATION_COMBINE":  int64(deepep.OperationCombine),
	"DEEP_EP_OPERATION_BARRIER":  int64(deepep.OperationBarrier),
	"DEEP_EP_OPERATION_RESET":    int64(deepep.OperationReset),
	"DEEP_EP_PHASE_NONE":         int64(deepep.PhaseNone),
	"DEEP_EP_PHASE_ENTER":        int64(deepep.PhaseEnter),
	"DEEP_EP_PHASE_COUNTS":       int64(deepep.PhaseCounts),
	"DEEP_EP_PHASE_DATA":         int64(deepep.PhaseData),
	"DEEP_EP_PHASE_READ":         int64(deepep.PhaseRead),
}
