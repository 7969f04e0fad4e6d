// SPDX-License-Identifier: Apache-2.0

package wires

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// plain is a driver that knows no more than where pods are.
type plain struct{ rules string }

func (d plain) Close() error { return nil }

func (d plain) Apply(_ context.Context, s *nodestate.State, _ nodestate.Keys) error {
	if _, err := kernel.SetSysctl(1, "net", "ipv4", "ip_forward"); err != nil {
		return err
	}
	route := func(ip net.IP, bits int, r netlink.Route) error {
		r.Dst = &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, 8*len(ip))}
		return netlink.RouteReplace(&r)
	}
	for a, v := range s.Addrs {
		if v.Kind == nodestate.AddrEndpoint {
			if err := route(a.AsSlice(), a.BitLen(), netlink.Route{LinkIndex: v.IfIndex, Scope: netlink.SCOPE_LINK}); err != nil {
				return err
			}
		}
	}
	for p, r := range s.Routes {
		if r.Node.IsValid() {
			if err := route(p.Masked().Addr().AsSlice(), p.Bits(), netlink.Route{LinkIndex: scenario.Uplink, Gw: r.Node.AsSlice()}); err != nil {
				return err
			}
		}
	}
	if d.rules == "" {
		return nil
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(d.rules)
	return cmd.Run()
}

func play(t *testing.T, rules string) error {
	t.Helper()
	nettest.NeedRoot(t, "making network namespaces")
	r := NewRunner(func(*scenario.Machine) (dataplane.Driver, error) { return plain{rules}, nil })
	defer func() {
		if err := r.Reset(); err != nil {
			t.Error(err)
		}
	}()
	s, err := scenario.Read(os.DirFS(".."), "pod-to-pod.txtar")
	if err != nil {
		t.Fatal(err)
	}
	err = s.Play(r.New)
	t.Log(r.Played, r.Skipped, err)
	return err
}

// TestSees: what a kernel does right is right, and each way of doing it wrong is seen.
func TestSees(t *testing.T) {
	if err := play(t, ""); err != nil {
		t.Error(err)
	}
	for name, rules := range map[string]string{
		"a packet is dropped":   `table inet x { chain c { type filter hook forward priority 0; tcp dport 80 drop; }; }`,
		"a packet is changed":   `table inet x { chain c { type filter hook forward priority 0; ip ttl set 12; }; }`,
		"a packet is answered":  `table inet x { chain c { type filter hook forward priority 0; reject; }; }`,
		"a packet goes astray":  `table ip x { chain c { type nat hook prerouting priority 0; ip daddr 10.244.1.3 dnat to 10.244.2.2; ip daddr 10.244.2.2 dnat to 10.244.1.3; }; }`,
		"a packet comes double": `table netdev x { chain c { type filter hook ingress device eth0 priority 0; dup to eth0; }; }`,
	} {
		if err := play(t, rules); err == nil {
			t.Errorf("%s: not seen", name)
		}
	}
}
