// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/agent/machine"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func TestHostEndpointsThatAreNotInForceAreNamed(t *testing.T) {
	t.Parallel()
	endpoints := []*model.HostEndpoint{
		{Name: "all", Node: "n1", Interface: model.AllInterfaces},
		{Name: "by-addr", Node: "n1", ExpectedIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		{Name: "gone", Node: "n1", Interface: "eth7"},
		{Name: "named", Node: "n1", Interface: "eth0"},
		{Name: "other", Node: "n1", Interface: "lan0"},
	}
	n := Node{HostEndpoints: endpoints, Machine: machine.Facts{Links: []model.LocalInterface{
		{Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, {Name: "lan0"}}}}
	got := HostEndpoints(n, []string{"eth0"}, false)
	if len(got) != 2 || !strings.Contains(got[0].String(), "HostEndpoint gone") || !strings.Contains(got[0].Message, "no such interface") ||
		!strings.Contains(got[1].String(), "HostEndpoint other") || !strings.Contains(got[1].Message, "no programs") {
		t.Errorf("%v", got)
	}
	// What the endpoint of all interfaces does not reach is named.
	n.Machine.Links[1].Addrs = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	n.Machine.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}
	n.State = nodestate.New()
	got = HostEndpoints(n, []string{"eth0"}, false)
	if len(got) != 4 || got[0].Object != "HostEndpoint all" || got[0].Value != "lan0" || got[3].Field != "IPv6" || got[3].Value != "2001:db8::1" {
		t.Errorf("%v", got)
	}
	n.State.Settings.IPv6 = true
	if got := HostEndpoints(n, []string{"eth0", "lan0"}, false); len(got) != 1 || got[0].Object != "HostEndpoint gone" {
		t.Errorf("%v", got)
	}
	if got := HostEndpoints(n, nil, true); len(got) != 1 || got[0].Object != "HostEndpoint gone" {
		t.Errorf("without eBPF: %v", got)
	}
}

// Where what doNotTrack policy denies is not dropped as early as it could be is said.
func TestLaterThanXDPIsNamed(t *testing.T) {
	t.Parallel()
	got := LateDrops("n1", map[string]string{"eth0": dataplane.XDPNative, "eth1": dataplane.XDPGeneric, "eth2": "device or resource busy"})
	if len(got) != 2 || got[0].Field != "doNotTrack on eth1" || !strings.Contains(got[0].Message, "generic") || got[1].Value != "device or resource busy" {
		t.Errorf("%v", got)
	}
}
