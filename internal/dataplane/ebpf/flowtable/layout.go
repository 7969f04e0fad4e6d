// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// walkBatch is how many entries walk reads at once.
const walkBatch = 4096

// StructOf returns a structure as the map's BTF describes it.
func StructOf(m *ebpf.Map, name string) (*btf.Struct, error) {
	info, err := m.Info()
	if err != nil {
		return nil, fmt.Errorf("asking for the layout: %w", err)
	}
	id, ok := info.BTFID()
	if !ok || id == 0 {
		return nil, errors.New("the map has no BTF of its layout")
	}
	h, err := btf.NewHandleFromID(id)
	if err != nil {
		return nil, fmt.Errorf("reading the layout: %w", err)
	}
	defer h.Close()
	spec, err := h.Spec(nil)
	if err != nil {
		return nil, fmt.Errorf("reading the layout: %w", err)
	}
	var s *btf.Struct
	if err := spec.TypeByName(name, &s); err != nil {
		return nil, fmt.Errorf("the layout has no struct %s: %w", name, err)
	}
	return s, nil
}

// OffsetOf returns where a field begins, bytes; -1 when the structure has none of that name.
func OffsetOf(s *btf.Struct, name string) int {
	for _, m := range s.Members {
		if m.Name == name {
			return int(m.Offset.Bytes())
		}
	}
	return -1
}

// byteArrays makes n arrays of a size, and the same memory as bytes.
func byteArrays(size, n int) (any, []byte) {
	v := reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(size, reflect.TypeFor[byte]())), n, n)
	return v.Interface(), unsafe.Slice((*byte)(v.UnsafePointer()), n*size)
}

// Walk hands on every entry of a hash map that programs go on to write. It goes by batches, each of
// which is whole buckets: unlike the way from key to key it does not lose its place when an entry
// is removed meanwhile.
func Walk(m *ebpf.Map, each func(key, value []byte)) error {
	size := min(int(m.MaxEntries()), walkBatch)
	keys, keyBytes := byteArrays(int(m.KeySize()), size)
	values, valueBytes := byteArrays(int(m.ValueSize()), size)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("reading the old map: %w", err)
		}
		for i := range n {
			each(keyBytes[i*int(m.KeySize()):][:m.KeySize()], valueBytes[i*int(m.ValueSize()):][:m.ValueSize()])
		}
		if err != nil {
			return nil
		}
	}
}
