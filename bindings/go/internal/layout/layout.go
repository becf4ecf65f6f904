// Package layout tells how cgo lays out the structs of deep_ep.h, for a comparison with the C compiler's own answer.
package layout

// #include <deep_ep.h>
import "C"

import "reflect"

// Field is where a field lies.
type Field struct {
	Offset uintptr `json:"offset"`
	Size   uintptr `json:"size"`
}

// Struct is the layout of one struct.
type Struct struct {
	Size   uintptr          `json:"size"`
	Align  uintptr          `json:"align"`
	Fields map[string]Field `json:"fields"`
}

// Structs are the structs that cross the ABI, by their C names.
func Structs() map[string]Struct {
	structs := map[string]Struct{}
	for name, value := range map[string]interface{}{
		"deep_ep_buffer_config_t":   C.deep_ep_buffer_config_t{},
		"deep_ep_buffer_sizes_t":    C.deep_ep_buffer_sizes_t{},
		"deep_ep_report_t":          C.deep_ep_report_t{},
		"deep_ep_unique_id_t":       C.deep_ep_unique_id_t{},
		"deep_ep_comm_config_t":     C.deep_ep_comm_config_t{},
		"deep_ep_rows_t":            C.deep_ep_rows_t{},
		"deep_ep_scales_t":          C.deep_ep_scales_t{},
		"deep_ep_dispatch_in_t":     C.deep_ep_dispatch_in_t{},
		"deep_ep_dispatch_out_t":    C.deep_ep_dispatch_out_t{},
		"deep_ep_combine_in_t":      C.deep_ep_combine_in_t{},
		"deep_ep_combine_out_t":     C.deep_ep_combine_out_t{},
		"deep_ep_statistics_t":      C.deep_ep_statistics_t{},
		"deep_ep_peer_statistics_t": C.deep_ep_peer_statistics_t{},
	} {
		t := reflect.TypeOf(value)
		s := Struct{Size: t.Size(), Align: uintptr(t.Align()), Fields: map[string]Field{}}
		for i := 0; i < t.NumField(); i++ {
			f := t.Field(i)
			if f.Name != "_" { // padding
				s.Fields[f.Name] = Field{f.Offset, f.Type.Size()}
			}
		}
		structs[name] = s
	}
	return structs
}
