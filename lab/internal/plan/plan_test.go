package plan

import (
	"net/netip"
	"testing"
)

func TestAddresses(t *testing.T) {
	l, err := New("weir", 3)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"cp": "172.31.1.8/24", "worker1": "172.31.1.207/24", "worker2": "172.31.1.208/24", "worker3": "172.31.1.209/24",
		"client1": "172.31.1.55/24", "client2": "172.31.1.162/24", "client3": "172.31.2.55/24",
	}
	if len(l.Machines) != len(want) {
		t.Fatalf("%d machines, want %d", len(l.Machines), len(want))
	}
	for name, addr := range want {
		m, ok := l.Machine(name)
		if !ok || m.Addr.String() != addr {
			t.Errorf("%s: got %v, want %s", name, m.Addr, addr)
		}
		if gw := netip.MustParsePrefix(addr).Masked().Contains(m.Gateway); !gw {
			t.Errorf("%s: gateway %s is not on its network", name, m.Gateway)
		}
	}
	if got := APIServer(); got != "https://172.31.1.8:6443" {
		t.Errorf("API server %s", got)
	}
}

func TestAddressesAreDistinct(t *testing.T) {
	l, err := New("big", MaxWorkers)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]string{Gateway: "gateway", FarGateway: "far gateway"}
	pods := map[netip.Prefix]string{}
	for _, m := range l.Machines {
		if other, ok := seen[m.Addr.Addr()]; ok {
			t.Errorf("%s and %s share %s", m.Name, other, m.Addr)
		}
		seen[m.Addr.Addr()] = m.Name
		if !m.IsNode() {
			continue
		}
		if other, ok := pods[m.PodCIDR]; ok {
			t.Errorf("%s and %s share %s", m.Name, other, m.PodCIDR)
		}
		if !PodCIDR.Contains(m.PodCIDR.Addr()) {
			t.Errorf("%s: %s is outside %s", m.Name, m.PodCIDR, PodCIDR)
		}
		pods[m.PodCIDR] = m.Name
	}
}

func TestBadPlans(t *testing.T) {
	for _, name := range []string{"", "-a", "a-", "A", "../x", "a/b", "averyveryverylongname1", "1a"} {
		if _, err := New(name, 1); err == nil {
			t.Errorf("name %q was accepted", name)
		}
	}
	for _, n := range []int{-1, MaxWorkers + 1} {
		if _, err := New("a", n); err == nil {
			t.Errorf("%d workers were accepted", n)
		}
	}
}

func TestOwns(t *testing.T) {
	l, err := New("a", 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range l.Namespaces() {
		if !Owns("a", ns) {
			t.Errorf("lab a does not own its %s", ns)
		}
	}
	for _, foreign := range []string{"a-b-cp", "ab-cp", "a-cp-cp", "a-worker", "a-worker1x", "a", "cp", "b-a-cp"} {
		if Owns("a", foreign) {
			t.Errorf("lab a claims %s", foreign)
		}
	}
}

func TestProxy(t *testing.T) {
	for in, mode := range map[string]string{"weir": "", "none": "", "kube-proxy-iptables": "iptables", "kube-proxy-nftables": "nftables"} {
		p, err := ParseProxy(in)
		if err != nil || p.KubeProxyMode() != mode {
			t.Errorf("%s: mode %q, error %v; want mode %q", in, p.KubeProxyMode(), err, mode)
		}
		if p.RoutesPods() != (in != "weir") {
			t.Errorf("%s: RoutesPods is %v", in, p.RoutesPods())
		}
	}
	if _, err := ParseProxy("ipvs"); err == nil {
		t.Error("ipvs was accepted")
	}
}
