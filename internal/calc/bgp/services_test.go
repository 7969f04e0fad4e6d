// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

func TestTags(t *testing.T) {
	c := racks()
	c.BGPConfigs["default"].Communities = map[string]string{"blue": "64512:1", "red": "64512:1:2"}
	c.BGPConfigs["default"].Tagged = []model.BGPTag{
		{CIDR: prefix("10.65.0.0/16"), Communities: []string{"blue", "7:7", "green"}},
		{CIDR: prefix("10.65.0.0/26"), Communities: []string{"red", "blue"}},
		{CIDR: prefix("10.65.0.0/27"), Communities: []string{"8:8"}}, // does not hold the block
		{CIDR: prefix("::/0"), Communities: []string{"green"}},
	}
	s := state(c)
	if got := fmt.Sprint(s.Tags); got != "[{10.65.0.0/26 [64512:1 64512:1:2 7:7]}]" {
		t.Errorf("tags are %s", got)
	}
	if got := fmt.Sprint(s.UnknownCommunities); got != "[green]" {
		t.Errorf("unknown are %s", got)
	}
	// What the node's own object says takes the place, by its names and the cluster's.
	c.BGPConfigs["node.a"] = &model.BGPConfig{Name: "node.a", Communities: map[string]string{"blue": "64512:9"}, Tagged: []model.BGPTag{{CIDR: prefix("10.0.0.0/8"), Communities: []string{"blue", "red"}}}}
	c.BGPConfigs["node.b"] = &model.BGPConfig{Name: "node.b", Tagged: []model.BGPTag{{CIDR: prefix("10.0.0.0/8"), Communities: []string{"5:5"}}}}
	s = state(c)
	if got := fmt.Sprint(s.Tags, s.UnknownCommunities); got != "[{10.65.0.0/26 [64512:1:2 64512:9]}] []" {
		t.Errorf("with the node's own tags are %s", got)
	}
	if c.BGPConfigs["default"].Communities["blue"] != "64512:1" {
		t.Error("the cluster's names were changed")
	}
}

// Routers prefer other nodes to one that is drained, or that goes.
func TestGracefulShutdown(t *testing.T) {
	const want = "[{10.65.0.0/26 [65535:0 7:7]} {fd00:65::100/122 [65535:0]}]"
	for name, change := range map[string]func(*model.Node){
		"cordoned": func(n *model.Node) { n.Cordoned = true }, "leaving": func(n *model.Node) { n.Leaving = true },
	} {
		c := racks()
		c.BGPConfigs["default"].Tagged = []model.BGPTag{{CIDR: prefix("10.65.0.0/16"), Communities: []string{"7:7"}}}
		change(c.Nodes["b"])
		if got := fmt.Sprint(state(c).Tags); got != "[{10.65.0.0/26 [7:7]}]" {
			t.Errorf("another node is %s: tags are %s", name, got)
		}
		change(c.Nodes["a"])
		if got := fmt.Sprint(state(c).Tags); got != want {
			t.Errorf("%s: tags are %s", name, got)
		}
	}
}

// What others advertise of Services is handed on within the AS, and is no route of the node.
func TestServiceRanges(t *testing.T) {
	c := racks()
	c.BGPConfigs["default"].BalancerIPs = []netip.Prefix{prefix("203.0.113.0/24")}
	c.Nodes["a"].Labels[model.LabelNoBalancers] = "" // which is so for nodes that are left out, too
	s := State(cluster.ViewOf(c), slices.Values([]cluster.ServiceAddr{{Addr: addr("203.0.113.5"), Kind: cluster.BalancerIP, Local: true, Here: true, Ready: true}}))
	all := prefix("203.0.113.0/24")
	if !slices.Contains(s.Keep, all) || !slices.Contains(s.Reflect, all) || slices.Contains(s.Pass, all) || slices.Contains(s.Advertise, all) {
		t.Errorf("kept %v, reflected %v, handed on %v, advertised %v", s.Keep, s.Reflect, s.Pass, s.Advertise)
	}
}
