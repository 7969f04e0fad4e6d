// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// withoutRecords makes the entries of the flow maps those of programs that account for nothing
// (bpf/flow_fields.h): a third smaller. Maps of the other size are carried over as of another
// layout, by the type that this gives them.
func withoutRecords(spec *ebpf.CollectionSpec) error {
	for _, name := range []string{"weir_flows", "weir_flows_new"} {
		ms := spec.Maps[name]
		whole, ok := ms.Value.(*btf.Struct)
		if !ok {
			return fmt.Errorf("the entries of map %s have no type", name)
		}
		records := slices.IndexFunc(whole.Members, func(m btf.Member) bool { return m.Name == "count" })
		if records < 0 {
			return fmt.Errorf("the entries of map %s have no counters", name)
		}
		plain := &btf.Struct{Name: whole.Name, Members: slices.Clone(whole.Members[:records]), Size: whole.Members[records].Offset.Bytes()}
		for _, field := range []string{"svc", "backend"} {
			at := slices.IndexFunc(whole.Members, func(m btf.Member) bool { return m.Name == field })
			if at < 0 {
				return fmt.Errorf("the entries of map %s have no field %s", name, field)
			}
			m := whole.Members[at]
			size, err := btf.Sizeof(m.Type)
			if err != nil {
				return fmt.Errorf("field %s of map %s: %w", field, name, err)
			}
			m.Offset = btf.Bits(plain.Size * 8)
			plain.Members, plain.Size = append(plain.Members, m), plain.Size+uint32(size)
		}
		ms.Value, ms.ValueSize = plain, plain.Size
	}
	return nil
}
