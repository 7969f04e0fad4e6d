// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// forHosts is a policy for the host endpoints with role=node.
func forHosts(name string, ingress, egress []model.Rule) *model.Policy {
	p := &model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: name}, Tier: model.TierDefault,
		Subject: model.Selector{Expression: "role == 'node'"}, Ingress: ingress, Egress: egress}
	p.AppliesIngress, p.AppliesEgress = ingress != nil, egress != nil
	return p
}

// from is a rule about TCP and UDP from a network, "" for everybody, to a port.
func (fam family) from(action model.Action, cidr string, port uint16) model.Rule {
	r := model.Rule{Action: action, Ports: []model.PortRange{
		{Protocol: model.ProtocolTCP, First: port, Last: port}, {Protocol: model.ProtocolUDP, First: port, Last: port}}}
	if cidr == "" {
		return r
	}
	r.Other = &model.Entity{InNets: true}
	r.Other.Nets = append(r.Other.Nets, fam.prefix(cidr))
	return r
}

func (f *fixture) put(p *model.Policy) { f.cluster.Policies[p.ID()] = p }

func (w *worker) opens(id int, addr string) {
	w.t.Helper()
	if a := w.call(request{Op: "open", Net: "tcp", Addr: addr, ID: id}); a.Err != "" {
		w.t.Fatalf("%s -> %s: %s", w.name, addr, a.Err)
	}
}

// TestHostEndpoint: what a node's own processes exchange is evaluated on its uplink, open
// connections too; failsafe ports stay open; what goes to pods is not its matter.
func TestHostEndpoint(t *testing.T) { inBoth(t, testHostEndpoint) }

func testHostEndpoint(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("near", "10.96.0.1", 30001, f.b)
	f.n1.listen("tcp", ":22")
	f.client.listen("tcp", ":6443")
	f.apply()
	f.client.opens(1, "172.30.0.8:9000")
	f.client2.opens(1, "172.30.0.8:9000")
	f.client2.opens(2, "172.30.0.8:22")
	f.n1.opens(1, "172.30.0.55:7000")

	f.cluster.HostEndpoints["n1"] = &model.HostEndpoint{Name: "n1", Node: "n1", Interface: "eth0", Labels: map[string]string{"role": "node"}}
	f.put(forHosts("nodes", []model.Rule{fam.from(model.Allow, "172.30.0.55/32", 9000)}, []model.Rule{}))
	f.apply()
	for _, nw := range networks {
		want(t, nw+" to the node", f.client.reaches("n1", nw, "172.30.0.8:9000"), "172.30.0.55")
		f.client2.refused(nw, "172.30.0.8:9000")
		f.n1.refused(nw, "172.30.0.55:7000")
		want(t, nw+" to a pod by a node port", f.client2.reaches("b", nw, "172.30.0.8:30001"), "172.30.0.62")
		f.a.reaches("client", nw, "172.30.0.55:7000")
		f.a.reaches("n1", nw, "172.30.0.8:9000")       // pods to their node: defaultEndpointToHostAction
		f.n1.reaches("a", nw, f.a.at("8080"))          // and back: probes
		f.n1.refused(nw, f.c.at("8080"))               // pods elsewhere are others
		f.n2.reaches("client", nw, "172.30.0.55:7000") // the endpoint is of n1
	}
	f.client2.reaches("n1", "tcp", "172.30.0.8:22") // a failsafe port
	f.n1.reaches("client", "tcp", "172.30.0.55:6443")
	for _, open := range []struct {
		w       *worker
		id      int
		allowed bool
	}{{f.client.worker, 1, true}, {f.client2.worker, 1, false}, {f.client2.worker, 2, true}, {f.n1.worker, 1, false}} {
		a := open.w.call(request{Op: "talk", ID: open.id, Timeout: 1000})
		if (a.Err == "") != open.allowed {
			t.Errorf("%s: connection %d, opened before: %q (%s), allowed: %t", open.w.name, open.id, a.Reply, a.Err, open.allowed)
		}
	}

	delete(f.cluster.HostEndpoints, "n1")
	f.apply()
	f.client2.reaches("n1", "tcp", "172.30.0.8:9000")
	f.n1.reaches("client", "tcp", "172.30.0.55:7000")
}

// TestHostEndpointReset: an open connection that a change of a host endpoint's policy denies ends
// by a reset to who sends: to processes of the node, their clients, pods that ask outside, and
// clients of Services.
func TestHostEndpointReset(t *testing.T) { inBoth(t, testHostEndpointReset) }

func testHostEndpointReset(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("near", "10.96.0.1", 30001, f.b)
	f.cluster.HostEndpoints["n1"] = &model.HostEndpoint{Name: "n1", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"role": "node"}, Profiles: []string{model.ProfileDefaultAllow}}
	f.apply()
	open := map[*worker]string{f.client.worker: "172.30.0.8:9000", f.n1.worker: "172.30.0.55:7000", f.a.worker: "172.30.0.55:7000", f.client2.worker: "172.30.0.8:30001"}
	for w, to := range open {
		w.opens(1, to)
		if a := w.call(request{Op: "talk", ID: 1}); a.Err != "" {
			t.Errorf("%s to %s: %s", w.name, to, a.Err)
		}
	}
	f.put(forHosts("closed", []model.Rule{}, []model.Rule{}))
	forward := forHosts("forward", nil, []model.Rule{fam.from(model.Deny, "", 7000), {Action: model.Allow}})
	forward.ApplyOnForward = true
	f.put(forward)
	before := forHosts("nodeports", []model.Rule{fam.from(model.Deny, "", 30001)}, nil)
	before.PreDNAT, before.ApplyOnForward = true, true
	f.put(before)
	f.apply()
	for w, to := range open {
		if a := w.call(request{Op: "talk", ID: 1}); !strings.Contains(a.Err, "connection reset") {
			t.Errorf("%s to %s: an open connection that is denied now got %q (%s), want a reset", w.name, to, a.Reply, a.Err)
		}
	}
}

// TestHostEndpointHandedOn: what another node hands on is evaluated as it came from the client.
func TestHostEndpointHandedOn(t *testing.T) { inBoth(t, testHostEndpointHandedOn) }

func testHostEndpointHandedOn(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("near", "10.96.0.1", 30001, f.b)
	f.cluster.HostEndpoints["n1"] = &model.HostEndpoint{Name: "n1", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"role": "node"}, Profiles: []string{model.ProfileDefaultAllow}}
	p := forHosts("nodeports", []model.Rule{fam.from(model.Allow, "172.30.0.55/32", 30001), fam.from(model.Deny, "", 30001)}, nil)
	p.PreDNAT, p.ApplyOnForward = true, true
	f.put(p)
	f.apply()
	for _, nw := range networks {
		want(t, nw+" by a node port", f.client.reaches("b", nw, "172.30.0.9:30001"), "172.30.0.55")
		f.client2.refused(nw, "172.30.0.9:30001")
	}
}

// TestHostEndpointHandsOn: a node hands on with the client's address though it has a host endpoint,
// whose policy is about the node alone and before Services.
func TestHostEndpointHandsOn(t *testing.T) {
	inBoth(t, func(t *testing.T, fam family) {
		for _, dsr := range []bool{false, true} {
			if !plays(t, fam, either(dsr)) {
				continue
			}
			t.Run(fmt.Sprintf("dsr=%v", dsr), func(t *testing.T) {
				f := newFixture(t, fam)
				f.cluster.Settings.DSR = dsr
				f.handsOnWithHostEndpoint(t)
			})
		}
	})
}

func (f *fixture) handsOnWithHostEndpoint(t *testing.T) {
	fam := f.family
	f.service("far", "10.96.0.2", 30002, f.c)
	f.cluster.HostEndpoints["n1"] = &model.HostEndpoint{Name: "n1", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"role": "node"}}
	before := forHosts("nodeports", []model.Rule{fam.from(model.Deny, "172.30.0.62/32", 30002), {Action: model.Allow}}, nil)
	before.PreDNAT, before.ApplyOnForward = true, true
	f.put(before)
	f.put(forHosts("node", []model.Rule{fam.from(model.Allow, "172.30.0.62/32", 9000)}, []model.Rule{{Action: model.Allow}}))
	f.apply()
	for _, nw := range networks {
		want(t, nw+" by a node port", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
		f.client2.refused(nw, "172.30.0.8:30002")
		f.client.refused(nw, "172.30.0.8:9000")
		f.client2.reaches("n1", nw, "172.30.0.8:9000")
	}
	// What is open goes on, is evaluated again, and ends with a change that denies it.
	f.client.opens(1, "172.30.0.8:30002")
	other := forHosts("other", []model.Rule{fam.from(model.Allow, "172.30.0.62/32", 9001)}, nil)
	f.put(other)
	f.apply()
	if a := f.client.call(request{Op: "talk", ID: 1, Timeout: 2000}); a.Err != "" {
		t.Errorf("a connection that is handed on ended with a change of policy that is not about it: %s", a.Err)
	}
	before.Ingress = []model.Rule{{Action: model.Deny}}
	f.put(before)
	f.apply()
	if a := f.client.call(request{Op: "talk", ID: 1, Timeout: 1000}); a.Err == "" {
		t.Errorf("a connection that is handed on outlives a policy that denies it: %q", a.Reply)
	}
}

// TestHostEndpointForward: what a node hands on is evaluated by policy with applyOnForward, and
// node ports before they are translated by that with preDNAT; both bind connections that are open.
func TestHostEndpointForward(t *testing.T) { inBoth(t, testHostEndpointForward) }

func testHostEndpointForward(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("near", "10.96.0.1", 30001, f.b)
	f.service("far", "10.96.0.2", 30002, f.c)
	h := &model.HostEndpoint{Name: "n1", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"role": "node"}, Profiles: []string{model.ProfileDefaultAllow}}
	f.cluster.HostEndpoints["n1"] = h
	f.apply()
	f.client.opens(1, "172.30.0.8:30001")
	f.client2.opens(1, "172.30.0.8:30001")

	p := forHosts("nodeports", []model.Rule{fam.from(model.Allow, "172.30.0.55/32", 30001), fam.from(model.Deny, "", 30001)}, nil)
	p.PreDNAT, p.ApplyOnForward = true, true
	f.put(p)
	f.apply()
	for _, nw := range networks {
		want(t, nw+" by a node port", f.client.reaches("b", nw, "172.30.0.8:30001"), "172.30.0.55")
		f.client2.refused(nw, "172.30.0.8:30001")
		f.client2.reaches("c", nw, "172.30.0.8:30002")
		f.client2.reaches("n1", nw, "172.30.0.8:9000")
		f.a.reaches("b", nw, "10.96.0.1:80")
	}
	for w, allowed := range map[*worker]bool{f.client.worker: true, f.client2.worker: false} {
		if a := w.call(request{Op: "talk", ID: 1, Timeout: 1000}); (a.Err == "") != allowed {
			t.Errorf("%s: a connection opened before: %q (%s), allowed: %t", w.name, a.Reply, a.Err, allowed)
		}
	}
	delete(f.cluster.Policies, p.ID())

	p = forHosts("forward", []model.Rule{fam.from(model.Allow, "172.30.0.62/32", 8080)}, []model.Rule{fam.from(model.Deny, "172.30.0.55/32", 7000), {Action: model.Allow}})
	p.ApplyOnForward = true
	f.put(p)
	f.apply()
	for _, nw := range networks {
		f.client.refused(nw, "172.30.0.8:30001")
		want(t, nw+" by a node port", f.client2.reaches("b", nw, "172.30.0.8:30001"), "172.30.0.62")
		f.a.refused(nw, "172.30.0.55:7000")  // it leaves the node
		f.a.reaches("b", nw, f.b.at("8080")) // it does not
		f.a.reaches("c", nw, f.c.at("8080"))
		f.c.refused(nw, f.a.at("8080"))
	}
}

// TestHostEndpointCarriedOver: what a node with policy for what it sends hands on through the
// tunnel goes on when the node changes over to nftables. There such a connection is older than the
// tables: it is not marked as evaluated, and each packet of it is asked about.
func TestHostEndpointCarriedOver(t *testing.T) {
	t.Parallel()
	for name, fam := range map[string]family{"IPv4": ipv4, "IPv6": ipv6} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, fam)
			f.routed = true
			f.service("far", "10.96.0.2", 30002, f.c)
			f.cluster.HostEndpoints["n1"] = &model.HostEndpoint{Name: "n1", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"role": "node"}}
			all := []model.Rule{{Action: model.Allow}}
			f.put(forHosts("nodes", all, all))
			f.apply()
			f.client.opens(1, "172.30.0.8:30002")
			talks := func(when string) {
				t.Helper()
				for range 3 {
					if a := f.client.call(request{Op: "talk", ID: 1, Timeout: 3000}); a.Err != "" {
						t.Fatalf("%s: %s", when, a.Err)
					}
				}
			}
			talks("before")
			f.n1.switchTo("nft")
			talks("with nftables")
			f.client.reaches("c", "tcp", "172.30.0.8:30002")
		})
	}
}
