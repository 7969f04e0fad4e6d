// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// machineAddrs are addresses of control's blocks that a virtual machine has.
var machineAddrs = []netip.Addr{addr("10.244.0.7"), addr("fd00:10:244::7")}

// withMachine is evil's cluster with a machine in the victim's pod, which is moved to worker; node
// is where it is.
func withMachine(node string) *model.Cluster {
	c := evil()
	control := *c.Nodes["control"]
	control.Addrs = append(slices.Clone(control.Addrs), addr("fd00:31:1::8"))
	c.Nodes["control"] = &control
	c.Pods.Put(&model.Pod{Name: model.Name{Namespace: "default", Name: "target"}, Node: "worker", Addrs: machineAddrs, Labels: app("victim"), Created: 400, UID: "t"})
	for _, a := range machineAddrs {
		p := netip.PrefixFrom(a, a.BitLen())
		c.Blocks[p] = &model.Block{CIDR: p, Node: node, Created: 500, VM: &model.BlockVM{Name: model.Name{Namespace: "default", Name: "vm"}, Pod: "v", TargetNode: "worker", TargetPod: "t"}}
	}
	return c
}

// at makes a cluster that of a node, with an endpoint at the machine's addresses.
func at(c *model.Cluster, node, pod string) *model.Cluster {
	c.Local.Node, c.Local.HostAddrs = node, c.Nodes[node].Addrs
	ep := &model.LocalEndpoint{Pod: model.Name{Namespace: "default", Name: pod}, ContainerID: "c", Interface: "cali1", IfIndex: 77, Addrs: machineAddrs}
	for _, a := range machineAddrs {
		c.Local.Endpoints[a] = ep
	}
	return c
}

// TestMachines: of the two pods of a virtual machine the one on the node of its address's block is
// an endpoint. The other one's interface is held, and its node sends where the others do.
func TestMachines(t *testing.T) {
	for _, home := range []string{"control", "worker"} {
		for node, pod := range map[string]string{"control": "victim", "worker": "target"} {
			s := Calc(at(withMachine(home), node, pod))
			for _, a := range machineAddrs {
				got, held := s.Addrs[a], s.Held[77] == "cali1"
				want := nodestate.AddrPod
				if node == home {
					want = nodestate.AddrEndpoint
				}
				if got.Kind != want || held != (node != home) {
					t.Errorf("machine on %s: %s has %s as %d (held: %t), want %d", home, node, a, got.Kind, held, want)
				}
				if node != home && got.Owner.Name != "vm" {
					t.Errorf("machine on %s: its owner at %s is %s", home, node, got.Owner)
				}
			}
		}
		c := withMachine(home)
		c.Local.Node, c.Local.HostAddrs = "near", c.Nodes["near"].Addrs
		if s := Calc(c); s.Addrs[machineAddrs[0]].Node != c.Nodes[home].NodeAddr() || s.Addrs[machineAddrs[1]].Node != c.Nodes[home].NodeAddr6() {
			t.Errorf("machine on %s: another node sends to %v and %v", home, s.Addrs[machineAddrs[0]].Node, s.Addrs[machineAddrs[1]].Node)
		}
		if refused := cluster.ViewOf(c).Owners.Refusals(); slices.ContainsFunc(refused, func(r cluster.Refusal) bool { return slices.Contains(machineAddrs, parseAddr(r.Value)) }) {
			t.Errorf("machine on %s: refused: %v", home, refused)
		}
	}
}

func parseAddr(s string) netip.Addr {
	a, _ := netip.ParseAddr(s)
	return a
}

// TestMachineMoves: a Calculator follows a machine from node to node as if it began anew.
func TestMachineMoves(t *testing.T) {
	for node, pod := range map[string]string{"control": "victim", "worker": "target"} {
		k, c := New(), at(withMachine("control"), node, pod)
		dirty := model.AllDirty()
		for _, home := range []string{"control", "worker", "control", ""} {
			for p, b := range withMachine(home).Blocks {
				if c.Blocks[p] = b; b.VM != nil && home == "" {
					delete(c.Blocks, p) // the machine is gone
				}
			}
			got, _ := k.Update(c, dirty)
			if want := Calc(c); !nodestate.Equal(got, want) {
				t.Errorf("%s, machine on %q: differs from what is computed anew:\n%s\n%s", node, home, got, want)
			}
			dirty = model.Dirty{Kinds: model.KindBlocks}
		}
	}
}

// TestHostileMachineAddress: a node does not get packets of a machine's address by saying that one
// of its pods has it, nor does a block of more than the machine's address count.
func TestHostileMachineAddress(t *testing.T) {
	hostile.Record(t, "a node writes a virtual machine's address into the status of its pod", hostile.Node, hostile.ControlPlane, hostile.Both)
	c := withMachine("control")
	c.Pods.Put(&model.Pod{Name: model.Name{Namespace: "default", Name: "thief"}, Node: "far", Addrs: machineAddrs, Created: 1, UID: "x"})
	wide := prefix("10.244.0.0/28")
	c.Blocks[wide] = &model.Block{CIDR: wide, Node: "far", Created: 1, VM: &model.BlockVM{Pod: "x"}}
	s := Calc(c)
	for i, want := range []netip.Addr{c.Nodes["control"].NodeAddr(), c.Nodes["control"].NodeAddr6()} {
		if got := s.Addrs[machineAddrs[i]]; got.Kind != nodestate.AddrPod || got.Node != want {
			t.Errorf("%s is sent to %v, want %v", machineAddrs[i], got.Node, want)
		}
	}
	if node, _ := cluster.ViewOf(c).Owners.ByAddr.Lookup(addr("10.244.0.9")); node != "control" {
		t.Errorf("the address beside the machine's is that of a pod on %q", node)
	}
}
