// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// acceptLocalOfLink lets answers in that come back from the node of a backend by a link: their
// source is an address of this node. Tables evaluate who may send with one. stateDir is of
// setting.make.
func acceptLocalOfLink(index int, stateDir string) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("looking for interface %d: %w", index, err)
	}
	name := l.Attrs().Name
	_, err2 := kernel.LooseReversePath(name)
	return errors.Join(acceptLocal.make(name, stateDir), err2)
}

// acceptLocalOfPods spares the kernel a second look-up for each packet of a pod of IPv4, where
// reverse paths are not checked anyway: whether the source is an address of the node. Tables ask
// whether it is the pod's.
func (m *Network) acceptLocalOfPods(s *nodestate.State) error {
	pods, errs := map[string]int{}, []error(nil)
	for a, v := range s.Addrs {
		if v.Kind != nodestate.AddrEndpoint || v.Interface == "" || v.Interface == "all" || v.Interface == "default" || !a.Is4() {
			continue
		}
		if index, known := m.acceptLocal[v.Interface]; known && index == v.IfIndex {
			pods[v.Interface] = index
			continue
		}
		checks, err := checksReversePath(v.Interface)
		if err == nil && !checks {
			err = acceptLocal.make(v.Interface, m.stateDir)
		}
		switch {
		case err == nil:
			pods[v.Interface] = v.IfIndex
		case !errors.Is(err, fs.ErrNotExist): // it is not there yet, or gone
			errs = append(errs, err)
		}
	}
	m.acceptLocal = pods
	return errors.Join(errs...)
}

// trustSenders keeps the kernel from dropping what pods send with sources that are not their own:
// by an interface without addresses even a loose check of reverse paths refuses what is routed
// elsewhere. Tables ask who may send with which.
func (m *Network) trustSenders(s *nodestate.State) error {
	trusted, errs := map[string]int{}, []error(nil)
	for a := range s.Sources {
		v := s.Addrs[a]
		if v.Kind != nodestate.AddrEndpoint || v.Interface == "" || v.Interface == "all" || v.Interface == "default" || !a.Is4() {
			continue
		}
		if index, known := m.trusted[v.Interface]; !known || index != v.IfIndex {
			if err := kernel.TrustDevice(v.Interface); errors.Is(err, fs.ErrNotExist) {
				continue // it is not there yet, or gone
			} else if err != nil {
				errs = append(errs, err)
				continue
			}
		}
		trusted[v.Interface] = v.IfIndex
	}
	m.trusted = trusted
	return errors.Join(errs...)
}

// checksReversePath reports whether sources of an interface are checked (RFC 3704).
func checksReversePath(name string) (bool, error) {
	for _, of := range []string{"all", name} {
		if v, err := kernel.Sysctl("net", "ipv4", "conf", of, "rp_filter"); err != nil || v != 0 {
			return true, err
		}
	}
	return false, nil
}
