// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// EachFlow hands on the entries of a flow map that programs may be writing.
func EachFlow[A abi.Address](m *ebpf.Map, f func(abi.FlowKey[A], abi.FlowValue[A])) error {
	var k abi.FlowKey[A]
	var v abi.FlowValue[A]
	if _, err := v.Marshal(m.ValueSize()); err != nil || int(m.KeySize()) != int(unsafe.Sizeof(k)) {
		return errors.Join(fmt.Errorf("the map has keys of %d bytes; those of flows have %d", m.KeySize(), unsafe.Sizeof(k)), err)
	}
	var failed error
	err := Walk(m, func(key, value []byte) {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&k)), unsafe.Sizeof(k)), key)
		if failed = v.Unmarshal(value); failed == nil {
			f(k, v)
		}
	})
	return errors.Join(err, failed)
}

// EachAffinity hands on the entries of a map that programs may be writing.
func EachAffinity[A abi.Address](m *ebpf.Map, f func(abi.AffinityKey[A], abi.AffinityValue[A])) error {
	var k abi.AffinityKey[A]
	var v abi.AffinityValue[A]
	if int(m.KeySize()) != int(unsafe.Sizeof(k)) || int(m.ValueSize()) != int(unsafe.Sizeof(v)) {
		return fmt.Errorf("the map has entries of %d and %d bytes, not of %d and %d", m.KeySize(), m.ValueSize(), unsafe.Sizeof(k), unsafe.Sizeof(v))
	}
	return Walk(m, func(key, value []byte) {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&k)), unsafe.Sizeof(k)), key)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), value)
		f(k, v)
	})
}

// LookUpFlow reads an entry of a flow map.
func LookUpFlow[A abi.Address](m *ebpf.Map, k abi.FlowKey[A], v *abi.FlowValue[A]) error {
	b := make([]byte, m.ValueSize())
	if err := m.Lookup(&k, b); err != nil {
		return err
	}
	return v.Unmarshal(b)
}

// AddFlow writes an entry where none is, and reports whether it did.
func AddFlow[A abi.Address](m *ebpf.Map, k abi.FlowKey[A], v abi.FlowValue[A]) (bool, error) {
	b, err := v.Marshal(m.ValueSize())
	if err != nil {
		return false, err
	}
	err = m.Update(&k, b, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return false, nil
	}
	return err == nil, err
}

func ReadSettingsMap[A abi.Address](m *ebpf.Map, v *abi.Settings[A]) error {
	var zero uint32
	if err := m.Lookup(&zero, unsafe.Pointer(v)); err != nil {
		return fmt.Errorf("reading the settings: %w", err)
	}
	return nil
}
