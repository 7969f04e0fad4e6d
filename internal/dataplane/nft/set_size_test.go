// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// crowded is a node with as many addresses of its own and of pods in each family; a pod has one of
// each.
func crowded(ipv4, ipv6 int) *nodestate.State {
	s := small()
	for a, v := range s.Addrs {
		if v.Kind == nodestate.AddrEndpoint {
			delete(s.Addrs, a)
		}
	}
	for i := range ipv4 - 1 {
		s.Addrs[netip.AddrFrom4([4]byte{10, 244, byte(8 + i>>8), byte(i)})] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: fmt.Sprintf("cali%d", i), NATOutgoing: true}
	}
	for i := range ipv6 - 1 {
		s.Addrs[netip.AddrFrom16([16]byte{0: 0xfd, 1: 1, 14: byte(i >> 8), 15: byte(i)})] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: fmt.Sprintf("cali%d", i)}
	}
	return s
}

// TestRoom: pods come and go on a real kernel, and so does the driver. Flows that packets taught a
// table stay in it, unless the family has more addresses than ever since the table was made; and
// what replaces all pods in one transaction fits.
func TestRoom(t *testing.T) {
	nettest.Run(t, func(string) error { return testRoom() })
}

func testRoom() error {
	d, err := New(Options{Logger: slog.New(slog.DiscardHandler), NoMachine: true})
	if err != nil {
		return err
	}
	const flow = "198.51.100.1 . 192.0.2.1 . 1000 . 80"
	for _, step := range []struct {
		pods     int // of IPv4
		kept     bool
		replaced bool // by as many others, in one transaction
		again    bool // another driver begins with what is there
	}{{pods: 1500}, {pods: 2040, kept: true, replaced: true}, {pods: 2060}, {pods: 2040, kept: true}, {pods: 2060, kept: true},
		{pods: 2040, kept: true, again: true}, {pods: 2060, kept: true}} {
		s := crowded(step.pods, 1500)
		if step.again {
			if d, err = New(Options{Logger: slog.New(slog.DiscardHandler), NoMachine: true}); err != nil {
				return err
			}
		}
		if err := d.Apply(context.Background(), s, nodestate.All()); err != nil {
			return fmt.Errorf("%+v: %w", step, err)
		}
		text, err := exec.Command("nft", "list", "map", "ip", "weir", chains.MapDSRFlows).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%+v: %w: %s", step, err, text)
		}
		if kept := strings.Contains(string(text), flow); kept != step.kept {
			return fmt.Errorf("%+v: the straight flow is there: %t", step, kept)
		}
		if out, err := exec.Command("nft", "add", "element", "ip", "weir", chains.MapDSRFlows, "{ "+flow+" timeout 1h : 0x10000 }").CombinedOutput(); err != nil {
			return fmt.Errorf("%+v: %w: %s", step, err, out)
		}
		if !step.replaced {
			continue
		}
		other := *s
		other.Addrs = map[netip.Addr]nodestate.Addr{}
		for a, v := range s.Addrs {
			if v.Kind == nodestate.AddrEndpoint {
				b := a.AsSlice()
				b[1]++
				a, _ = netip.AddrFromSlice(b)
				v.Interface = "calix" + v.Interface[4:]
			}
			other.Addrs[a] = v
		}
		if err := d.Apply(context.Background(), &other, nodestate.All()); err != nil {
			return fmt.Errorf("%+v, others: %w", step, err)
		}
	}
	return nil
}
