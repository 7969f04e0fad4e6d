// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
)

// Free forgets TCP flows to the given addresses and ports whose destination is translated, in the
// maps of this layout that are pinned below root, and returns how many these were: a new connection
// from the same port would be translated as they are, whatever is in force now, until they time
// out. No maps have no such flows.
func Free(root string, to []netip.AddrPort) (int, error) {
	four, err := free[abi.Ip4](bpffs.MapsDir(root), to)
	six, err6 := free[abi.Ip6](bpffs.Maps6Dir(root), to)
	return four + six, errors.Join(err, err6)
}

func free[A abi.Address](dir string, to []netip.AddrPort) (int, error) {
	if !slices.ContainsFunc(to, func(a netip.AddrPort) bool { return abi.Carries[A](a.Addr()) }) {
		return 0, nil
	}
	freed := 0
	for _, name := range []string{"weir_flows", "weir_flows_new"} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return freed, fmt.Errorf("opening the pinned map %s: %w", name, err)
		}
		defer m.Close()
		var found []abi.FlowKey[A]
		err = EachFlow(m, func(k abi.FlowKey[A], v abi.FlowValue[A]) {
			asked := netip.AddrPortFrom(abi.FromAddr(k.Daddr), abi.Be16(k.Dport))
			if k.Proto == unix.IPPROTO_TCP && v.Flags&abi.FlowReply == 0 && (v.Daddr != k.Daddr || v.Dport != k.Dport) && slices.Contains(to, asked) {
				found = append(found, k)
			}
		})
		if err != nil {
			return freed, fmt.Errorf("looking through map %s: %w", name, err)
		}
		for _, k := range found {
			err := m.Delete(unsafe.Slice((*byte)(unsafe.Pointer(&k)), unsafe.Sizeof(k)))
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return freed, fmt.Errorf("removing a flow of map %s: %w", name, err)
			}
			freed++
		}
	}
	return freed, nil
}
