// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// egressCluster has a client on n1 in namespace apps and two gateways in namespace out, on n1 and
// n2, with the grant of that.
func egressCluster(local string) *model.Cluster {
	c := model.NewCluster()
	c.Settings.Egress = model.EgressPerNamespaceOrPerPod
	c.Namespaces["apps"] = &model.Namespace{Name: "apps", Labels: map[string]string{"team": "a"}}
	c.Namespaces["out"] = &model.Namespace{Name: "out", EgressClients: "team == 'a'"}
	c.Pools["p"] = &model.Pool{Name: "p", CIDR: netip.MustParsePrefix("10.0.0.0/16"), Workload: true}
	c.Local.Node, c.Local.Endpoints = local, map[netip.Addr]*model.LocalEndpoint{}
	for i, name := range []string{"n1", "n2", "n3"} {
		c.Nodes[name] = &model.Node{Name: name, Gateways: true, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}}
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i + 1), 0}), 26)
		c.Blocks[block] = &model.Block{CIDR: block, Node: name}
	}
	egressPod(c, "apps/client", "n1", "10.0.1.1", &model.EgressClient{Selector: "egress == 'red'", Namespaces: "projectcalico.org/name == 'out'"}, nil)
	egressPod(c, "out/one", "n1", "10.0.1.2", nil, &model.EgressGateway{Ready: true, Labels: map[string]string{"egress": "red"}})
	egressPod(c, "out/two", "n2", "10.0.2.2", nil, &model.EgressGateway{Ready: true, Labels: map[string]string{"egress": "red"}})
	return c
}

func egressPod(c *model.Cluster, name, node, addr string, client *model.EgressClient, gateway *model.EgressGateway) {
	var of model.Name
	for i := range name {
		if name[i] == '/' {
			of = model.Name{Namespace: name[:i], Name: name[i+1:]}
		}
	}
	a := netip.MustParseAddr(addr)
	c.Pods.Put(&model.Pod{Name: of, Node: node, Addrs: []netip.Addr{a}, Egress: client, Gateway: gateway})
	if node == c.Local.Node {
		c.Local.Endpoints[a] = &model.LocalEndpoint{Pod: of, Interface: "cali" + of.Name}
	}
}

// gatewaysOf are those that annotations select.
func gatewaysOf(c *model.Cluster) string {
	out := map[netip.Addr][]netip.Addr{}
	for k, list := range Calc(c).Gateways {
		if k.Group == nodestate.GroupAnnotations {
			out[k.Client] = list
		}
	}
	return fmt.Sprint(out)
}

func TestGateways(t *testing.T) {
	t.Parallel()
	client := netip.MustParseAddr("10.0.1.1")
	nodeDown := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.2"): true}
	both, none := "map[10.0.1.1:[10.0.1.2 10.0.2.2]]", "map[]"
	for _, test := range []struct {
		name, node string
		change     func(*model.Cluster)
		want       string
		free       bool // the client leaves as other pods do
	}{
		{"all is there", "n1", func(*model.Cluster) {}, both, false},
		{"a gateway's node knows the client", "n2", func(*model.Cluster) {}, "map[10.0.1.1:[10.0.2.2]]", false},
		{"a gateway's node is down", "n1", func(c *model.Cluster) { c.Local.Down = nodeDown }, "map[10.0.1.1:[10.0.1.2]]", false},
		{"and there is no other", "n1", func(c *model.Cluster) {
			c.Local.Down = nodeDown
			egressPod(c, "out/one", "n1", "10.0.1.2", nil, nil)
		}, "map[10.0.1.1:[10.0.2.2]]", false},
		{"another node does not", "n3", func(*model.Cluster) {}, none, false},
		{"it is off", "n1", func(c *model.Cluster) { c.Settings.Egress = model.EgressDisabled }, none, true},
		{"pods' annotations do not count", "n1", func(c *model.Cluster) { c.Settings.Egress = model.EgressPerNamespace }, none, true},
		{"the namespace says it", "n1", func(c *model.Cluster) {
			c.Settings.Egress = model.EgressPerNamespace
			c.Namespaces["apps"].Egress = &model.EgressClient{Selector: "all()", Namespaces: "projectcalico.org/name == 'out'"}
		}, both, false},
		{"nobody granted it", "n1", func(c *model.Cluster) { c.Namespaces["out"].EgressClients = "" }, none, false},
		{"it was granted to others", "n1", func(c *model.Cluster) { c.Namespaces["out"].EgressClients = "team == 'b'" }, none, false},
		{"no namespace is selected: the client's own", "n1", func(c *model.Cluster) {
			egressPod(c, "apps/client", "n1", "10.0.1.1", &model.EgressClient{Selector: "egress == 'red'"}, nil)
		}, none, false},
		{"a selector that cannot be read", "n1", func(c *model.Cluster) {
			egressPod(c, "apps/client", "n1", "10.0.1.1", &model.EgressClient{Selector: "egress ==", Namespaces: "all()"}, nil)
		}, none, false},
		{"a policy that there is not", "n1", func(c *model.Cluster) {
			egressPod(c, "apps/client", "n1", "10.0.1.1", &model.EgressClient{Selector: "all()", Namespaces: "all()", Policy: "p"}, nil)
		}, none, false},
		{"one is not ready", "n1", func(c *model.Cluster) {
			egressPod(c, "out/two", "n2", "10.0.2.2", nil, &model.EgressGateway{Labels: map[string]string{"egress": "red"}})
		}, "map[10.0.1.1:[10.0.1.2]]", false},
		{"a gateway's node leads nobody out", "n1", func(c *model.Cluster) { c.Nodes["n2"].Gateways = false }, "map[10.0.1.1:[10.0.1.2]]", false},
		{"a gateway's node is not known", "n1", func(c *model.Cluster) { delete(c.Nodes, "n2") }, "map[10.0.1.1:[10.0.1.2]]", false},
		{"a node names an address of another node's block", "n1", func(c *model.Cluster) {
			egressPod(c, "out/two", "n2", "10.0.3.2", nil, &model.EgressGateway{Ready: true, Labels: map[string]string{"egress": "red"}})
		}, "map[10.0.1.1:[10.0.1.2]]", false},
		{"the client is not known yet", "n1", func(c *model.Cluster) { c.Pods.Delete(model.Name{Namespace: "apps", Name: "client"}) }, none, false},
		{"nor is its namespace", "n1", func(c *model.Cluster) {
			delete(c.Namespaces, "apps")
		}, none, false},
	} {
		c := egressCluster(test.node)
		test.change(c)
		if got := gatewaysOf(c); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if test.node != "n1" {
			continue
		}
		if got := Calc(c).Addrs[client].Gateways; got == test.free {
			t.Errorf("%s: the client must leave by a gateway: %v", test.name, got)
		}
	}
}

// Nodes with gateways of the node's own pods are probed, those of other nodes' pods are not.
func TestProbed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		node string
		down map[netip.Addr]bool
		want string
	}{
		{"n1", nil, "map[192.0.2.2:false]"},
		{"n1", map[netip.Addr]bool{netip.MustParseAddr("192.0.2.2"): true}, "map[192.0.2.2:true]"},
		{"n2", nil, "map[]"},
		{"n3", nil, "map[]"},
	} {
		c := egressCluster(test.node)
		c.Local.Down = test.down
		if got := fmt.Sprint(Calc(c).Probed); got != test.want {
			t.Errorf("on %s with %v: %s, want %s", test.node, test.down, got, test.want)
		}
	}
}

// Of more gateways than a list has room for, one that goes takes others from few lists.
func TestGatewaysMost(t *testing.T) {
	t.Parallel()
	c := egressCluster("n1")
	for i := range 20 {
		egressPod(c, fmt.Sprintf("out/more%d", i), "n2", fmt.Sprintf("10.0.2.%d", i+10), nil, &model.EgressGateway{Ready: true, Labels: map[string]string{"egress": "red"}})
	}
	client := netip.MustParseAddr("10.0.1.1")
	before := Calc(c).Gateways[nodestate.GatewayKey{Client: client}]
	if len(before) != nodestate.GatewaysMost {
		t.Fatalf("%d gateways", len(before))
	}
	gone := c.Pods.At(before[3])
	for r := range gone {
		c.Pods.Delete(r.Name())
		break
	}
	after := Calc(c).Gateways[nodestate.GatewayKey{Client: client}]
	for i, a := range before {
		if slices.Contains(after, a) != (i != 3) {
			t.Errorf("%v, then %v", before, after)
		}
	}
}
