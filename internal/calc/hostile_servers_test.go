// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/service"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestHostileExternalIPOfUnknownServers: kubelets of a cluster whose API servers are behind an
// address that moves between them use that one, which neither the cluster nor agents that are given
// another one know of.
func TestHostileExternalIPOfUnknownServers(t *testing.T) {
	hostile.Record(t, "a Service's external IP is the address by which kubelets reach the API servers, and agents do not", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	ips := []string{"172.31.1.100", "2001:db8:a::100"}
	c := attacked()
	evilService(c, 6443, external(ips...))
	keeps(t, c, model.ProtocolTCP, 6443, ips...)
	if list := Calc(c).Refused.At(nodestate.Object{Kind: "Service", Name: evilName}); !slices.ContainsFunc(list, func(r nodestate.Refusal) bool { return r.Action == service.ActionLeads }) {
		t.Errorf("the setting is not named: %v", list)
	}
	c.Settings.ServiceExternalIPs = []netip.Prefix{prefix("172.31.1.100/32"), prefix("2001:db8:a::/64")} // an administrator knows better
	for _, ip := range ips {
		if _, ok := Calc(c).Frontends.Get(front(ip, 6443)); !ok {
			t.Errorf("%s is in serviceExternalIPs, and not served", ip)
		}
	}
	c = attacked() // API servers beyond the cluster alone say nothing of other addresses
	slice(c, cluster.APIService, "", "https", 443, "203.0.113.6", "2001:db8:6::6")
	evilService(c, 443, external(ips...))
	for _, ip := range ips {
		if _, ok := Calc(c).Frontends.Get(front(ip, 443)); !ok {
			t.Errorf("%s with port 443 is not served", ip)
		}
	}
}

// TestHostileExternalIPOfReachedServer: what an agent reached the API server by, although the
// cluster does not name it.
func TestHostileExternalIPOfReachedServer(t *testing.T) {
	hostile.Record(t, "a Service's external IP or load balancer's address takes the API server's load balancer, which only agents know", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	ips := []string{"198.51.100.6", "2001:db8:c::6"}
	c := attacked()
	for _, ip := range ips {
		c.Local.APIServers = append(c.Local.APIServers, netip.AddrPortFrom(addr(ip), 443))
	}
	c.Local.APIServers = append(c.Local.APIServers, netip.MustParseAddrPort("127.0.0.1:16443"))
	for _, set := range []func(*model.Service){external(ips...), func(s *model.Service) { s.LBIPs = addrList(ips...) }} {
		evilService(c, 443, set)
		keeps(t, c, model.ProtocolTCP, 443, ips...)
	}
	evilPod(c, 16443, addr("127.0.0.1")) // a proxy on the node
	keeps(t, c, model.ProtocolTCP, 16443, "127.0.0.1")
}

// TestHostileSliceOfAPIServers: who may write to the namespace default labels an EndpointSlice as
// one of the API servers.
func TestHostileSliceOfAPIServers(t *testing.T) {
	hostile.Record(t, "an EndpointSlice that a tenant wrote counts as the API servers' own", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	slice(c, cluster.APIService, "evil", "https", 8080, "10.244.2.66", "192.0.2.99", "172.31.1.8", "fd00:10:244:2::66")
	s := Calc(c)
	for _, ip := range []string{"10.96.0.1", "fd00:10:96::1"} {
		for _, b := range s.Backends.At(front(ip, 443)) {
			if b.Port != 6443 {
				t.Errorf("the API servers' cluster IP %s leads to %v", ip, b)
			}
		}
		if len(s.Backends.At(front(ip, 443))) != 2 {
			t.Errorf("%s leads to %v", ip, s.Backends.At(front(ip, 443)))
		}
	}
	evilPod(c, 8080, netip.Addr{})
	if _, ok := Calc(c).Frontends.Get(front("0.0.0.0", 8080)); !ok {
		t.Error("its port is needed on nodes")
	}
	delete(c.Slices, cluster.APIServerSlice) // where the API servers write none, an administrator's counts as any Service's
	slice(c, cluster.APIService, "evil", "https", 6443, "192.0.2.99", "172.31.1.8")
	list := Calc(c).Backends.At(front("10.96.0.1", 443))
	if slices.ContainsFunc(list, func(b nodestate.Backend) bool { return b.Addr == addr("172.31.1.8") && b.Port == 6443 }) || len(list) == 0 {
		t.Errorf("without the API servers' own slice: %v", list)
	}
}

// TestHostileSliceOpensHosts: nor does it open anything to host endpoints.
func TestHostileSliceOpensHosts(t *testing.T) {
	hostile.Record(t, "an EndpointSlice that a tenant wrote opens ports of host endpoints as the API servers' own does", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := hostFixture()
	slice(c, cluster.APIService, "", "https", 8443, "192.0.2.7", "2001:db8::7")
	slice(c, cluster.APIService, "evil", "https", 9443, "192.0.2.66", "2001:db8::66")
	for _, ip := range []string{"192.0.2.66", "2001:db8::66"} {
		for _, port := range []uint16{8443, 9443} {
			if got := hostVerdict(Calc(c), hostOut, ip, port); got != "false default-deny" {
				t.Errorf("to %s, port %d: %s", ip, port, got)
			}
		}
	}
	if got := hostVerdict(Calc(c), hostOut, "192.0.2.7", 8443); got != "true failsafe" {
		t.Errorf("to the API server: %s", got)
	}
	delete(c.Slices, cluster.APIServerSlice)
	if got := hostVerdict(Calc(c), hostOut, "192.0.2.66", 9443); got != "false default-deny" {
		t.Errorf("without the API servers' own: %s", got)
	}
}

// TestHostileNodeIsAPIServer: a node that claims an external API server's address makes its port
// needed on no other node.
func TestHostileNodeIsAPIServer(t *testing.T) {
	hostile.Record(t, "a node claims the address of an API server outside, whose port is then kept from every node's pods and Services", hostile.Node, hostile.ControlPlane, hostile.Both)
	c := attacked()
	slice(c, cluster.APIService, "", "https", 443, "203.0.113.6", "2001:db8:6::6")
	run(c, "default", "ingress", "worker", "10.244.1.7", nil, model.PodPort{Protocol: model.ProtocolTCP, Port: 8443, HostPort: 443})
	evilService(c, 443, external("172.31.1.207", "198.51.100.77", "2001:db8:d::77"))
	fronts := func() (out []nodestate.Frontend) {
		for f := range Calc(c).Frontends.All() {
			if f.Port == 443 {
				out = append(out, f)
			}
		}
		slices.SortFunc(out, service.CompareFrontends)
		return out
	}
	was := fronts()
	n := *c.Nodes["far"]
	n.Addrs, n.Since = append(slices.Clone(n.Addrs), addrList("203.0.113.6", "2001:db8:6::6")...), map[netip.Addr]int64{}
	for _, a := range addrList("203.0.113.6", "2001:db8:6::6") {
		n.Since[a] = 950
	}
	c.Nodes["far"] = &n
	if is := fronts(); !slices.Equal(was, is) || len(was) < 5 {
		t.Errorf("before %v, after %v", was, is)
	}
	n.Since = nil // it joined with them: its own ports are kept
	if _, ok := Calc(c).Frontends.Get(front("0.0.0.0", 443)); !ok {
		t.Error("the host port of another node is not served")
	}
	evilService(c, 443, external("203.0.113.6", "172.31.2.20"))
	keeps(t, c, model.ProtocolTCP, 443, "203.0.113.6")
}
