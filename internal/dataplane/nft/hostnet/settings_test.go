// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestTrustPods: the kernel does not look at the sources of pods where it does not check reverse
// paths anyway, and only as long as this data plane is there.
func TestTrustPods(t *testing.T) {
	nettest.Run(t, trustSomePods)
}

func trustSomePods(dir string) error {
	s := nodestate.New()
	s.Addrs[netip.MustParseAddr("10.244.1.9")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali9"} // not there yet
	_, err := kernel.SetSysctl(0, "net", "ipv4", "conf", "all", "rp_filter")
	errs := []error{err}
	for i, name := range []string{"cali1", "cali2"} {
		errs = append(errs, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}))
		_, err := kernel.SetSysctl(i, "net", "ipv4", "conf", name, "rp_filter") // of cali2 strict
		errs = append(errs, err)
		s.Addrs[netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: name, IfIndex: i + 1}
	}
	m := &Network{stateDir: dir}
	if err := errors.Join(append(errs, m.acceptLocalOfPods(s), acceptsLocal("cali1", 1), acceptsLocal("cali2", 0))...); err != nil {
		return err
	}
	if err := acceptLocal.set("cali1", 0); err != nil {
		return err
	}
	if err := errors.Join(m.acceptLocalOfPods(s), acceptsLocal("cali1", 0)); err != nil { // it was looked at
		return err
	}
	again := &Network{stateDir: dir}
	return errors.Join(again.acceptLocalOfPods(s), acceptsLocal("cali1", 1), RestoreSettings(dir), acceptsLocal("cali1", 0), acceptsLocal("cali2", 0))
}

// TestRestore: an interface gets back what it had before, once, and what somebody else set
// meanwhile stays.
func TestRestore(t *testing.T) {
	nettest.Run(t, trustAndRestore)
}

func trustAndRestore(dir string) error {
	index := map[string]int{}
	for _, name := range []string{"plain", "theirs", "other"} {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}); err != nil {
			return err
		}
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		index[name] = l.Attrs().Index
	}
	if err := acceptLocal.set("theirs", 1); err != nil { // before us
		return err
	}
	for range 2 { // the second time nothing is new
		for name, i := range index {
			if err := errors.Join(acceptLocalOfLink(i, dir), acceptsLocal(name, 1)); err != nil {
				return err
			}
		}
	}
	if err := acceptLocal.set("other", 0); err != nil { // somebody else, meanwhile
		return err
	}
	if err := errors.Join(RestoreSettings(dir), acceptsLocal("plain", 0), acceptsLocal("theirs", 1), acceptsLocal("other", 0)); err != nil {
		return err
	}
	if err := acceptLocal.set("plain", 1); err != nil {
		return err
	}
	return errors.Join(RestoreSettings(dir), acceptsLocal("plain", 1)) // nothing of it is ours any more
}

// acceptsLocal says where an interface is not as wanted.
func acceptsLocal(name string, want int) error {
	got, err := kernel.Sysctl("net", "ipv4", "conf", name, "accept_local")
	if err == nil && got != want {
		err = fmt.Errorf("accept_local of %s is %d, want %d", name, got, want)
	}
	return err
}
