// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	l, err := New("weir", 3, IPv4, false)
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
		if len(m.Families) != 1 || m.Families[0].Addr != m.Addr {
			t.Errorf("%s: %+v; want IPv4 alone", name, m.Families)
		}
	}
	if got := l.APIServer(); got != "https://172.31.1.8:6443" {
		t.Errorf("API server %s", got)
	}
}

func TestAddressesOfBothFamilies(t *testing.T) {
	l, err := New("weir", 3, Dual, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"cp": "fd00:172:31:1::8/64", "worker1": "fd00:172:31:1::207/64", "worker3": "fd00:172:31:1::209/64",
		"client1": "fd00:172:31:1::55/64", "client2": "fd00:172:31:1::162/64", "client3": "fd00:172:31:2::55/64",
	} {
		m, _ := l.Machine(name)
		if len(m.Families) != 2 || m.Families[0].Addr != m.Addr || m.Families[1].Addr.String() != want {
			t.Errorf("%s: %+v; want %s", name, m.Families, want)
		}
	}
	if m, _ := l.Machine("worker2"); m.PodCIDRs()[0] != "10.244.2.0/24" || m.PodCIDRs()[1] != "fd00:10:244:2::/64" {
		t.Errorf("pods of worker2: %v", m.PodCIDRs())
	}
	if l.PodCIDRs() != "10.244.0.0/16,fd00:10:244::/56" || l.ServiceCIDRs() != "10.96.0.0/16,fd00:10:96::/112" {
		t.Error(l.PodCIDRs(), l.ServiceCIDRs())
	}
	if single, _ := New("weir", 0, IPv4, false); single.PodCIDRs() != "10.244.0.0/16" || single.ServiceCIDRs() != "10.96.0.0/16" {
		t.Error(single.PodCIDRs(), single.ServiceCIDRs())
	}
	if !ServiceIPs.Contains(DNS) || !ServiceIPs6.Contains(DNS6) {
		t.Error("the DNS addresses are no Service addresses")
	}
}

func TestAddressesOfIPv6(t *testing.T) {
	l, err := New("weir", 2, IPv6, true)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"cp": "fd00:172:31:1::8/64", "worker1": "fd00:172:31:1::207/64", "worker2": "fd00:172:31:2::208/64", "client3": "fd00:172:31:2::55/64"} {
		if m, _ := l.Machine(name); len(m.Families) != 1 || m.Families[0].Addr != m.Addr || m.Addr.String() != want {
			t.Errorf("%s: %+v; want %s alone", name, m.Families, want)
		}
	}
	if got := l.APIServer(); got != "https://[fd00:172:31:1::8]:6443" {
		t.Errorf("API server %s", got)
	}
	if l.PodCIDRs() != "fd00:10:244::/56" || l.ServiceCIDRs() != "fd00:10:96::/112" || fmt.Sprint(l.DNS(), l.KubernetesService()) != "[fd00:10:96::a] [fd00:10:96::1]" {
		t.Error(l.PodCIDRs(), l.ServiceCIDRs(), l.DNS(), l.KubernetesService())
	}
}

func TestAddressesAreDistinct(t *testing.T) {
	l, err := New("big", MaxWorkers, Dual, false)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]string{Gateway: "gateway", FarGateway: "far gateway", Gateway6: "gateway", FarGateway6: "far gateway"}
	pods := map[netip.Prefix]string{}
	for _, m := range l.Machines {
		for _, n := range m.Families {
			if other, ok := seen[n.Addr.Addr()]; ok {
				t.Errorf("%s and %s share %s", m.Name, other, n.Addr)
			}
			seen[n.Addr.Addr()] = m.Name
			if !n.Addr.Masked().Contains(n.Gateway) {
				t.Errorf("%s: gateway %s is not on its network", m.Name, n.Gateway)
			}
			if !m.IsNode() {
				continue
			}
			if other, ok := pods[n.PodCIDR]; ok {
				t.Errorf("%s and %s share %s", m.Name, other, n.PodCIDR)
			}
			if !PodCIDR.Contains(n.PodCIDR.Addr()) && !PodCIDR6.Contains(n.PodCIDR.Addr()) {
				t.Errorf("%s: %s is outside of the pod network", m.Name, n.PodCIDR)
			}
			pods[n.PodCIDR] = m.Name
		}
	}
}

func TestBadPlans(t *testing.T) {
	for _, name := range []string{"", "-a", "a-", "A", "../x", "a/b", "averyveryverylongname1", "1a"} {
		if _, err := New(name, 1, Dual, false); err == nil {
			t.Errorf("name %q was accepted", name)
		}
	}
	for _, n := range []int{-1, MaxWorkers + 1} {
		if _, err := New("a", n, IPv4, false); err == nil {
			t.Errorf("%d workers were accepted", n)
		}
	}
}

func TestOwns(t *testing.T) {
	l, err := New("a", 2, IPv4, false)
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
	for in, mode := range map[string]string{"weir": "", "none": "", "kube-proxy-iptables": "iptables", "kube-proxy-nftables": "nftables",
		"weir+kube-proxy-iptables": "iptables", "weir+kube-proxy-nftables": "nftables"} {
		p, err := ParseProxy(in)
		if err != nil || p.KubeProxyMode() != mode {
			t.Errorf("%s: mode %q, error %v; want mode %q", in, p.KubeProxyMode(), err, mode)
		}
		weir := strings.HasPrefix(in, "weir")
		if p.On() != "" || p.VPC() {
			t.Errorf("%s is on %q", in, p.On())
		}
		if p.RoutesPods() == weir || p.Weir() != weir || p.Alongside() != (weir && mode != "") {
			t.Errorf("%s: RoutesPods is %v, Weir %v, Alongside %v", in, p.RoutesPods(), p.Weir(), p.Alongside())
		}
	}
	if p, err := ParseOn("generic"); err != nil || !p.Weir() || !p.RoutesPods() || p.VPC() || p.On() != "generic" || p.Alongside() || p.KubeProxyMode() != "" {
		t.Errorf("on generic: %q, %v", p, err)
	}
	if p, err := ParseOn("aws-vpc-cni"); err != nil || !p.Weir() || p.RoutesPods() || !p.VPC() || p.On() != "aws-vpc-cni" || p.Alongside() || p.KubeProxyMode() != "iptables" {
		t.Errorf("on aws-vpc-cni: %q, %v", p, err)
	}
	for _, on := range []string{"azure-cni", "azure-cni-overlay"} {
		if p, err := ParseOn(on); err != nil || !p.Weir() || p.RoutesPods() || p.VPC() || !p.VNet() || p.On() != on || p.Alongside() || p.KubeProxyMode() != "iptables" {
			t.Errorf("on %s: %q, %v", on, p, err)
		}
	}
	if p, err := ParseOn(""); err != nil || p != ProxyWeir {
		t.Errorf("on nothing: %q, %v", p, err)
	}
	if _, err := ParseOn("flannel"); err == nil {
		t.Error("flannel was accepted")
	}
	for _, wrong := range []string{"ipvs", "", "weir+kube-proxy-ipvs", "kube-proxy-"} {
		if _, err := ParseProxy(wrong); err == nil {
			t.Errorf("%q was accepted", wrong)
		}
	}
}

func TestFamily(t *testing.T) {
	for _, ok := range []string{"ipv4", "ipv6", "dual"} {
		if f, err := ParseFamily(ok); err != nil || string(f) != ok {
			t.Errorf("%s: %q, %v", ok, f, err)
		}
	}
	for _, bad := range []string{"", "ipv5", "IPv4"} {
		if _, err := ParseFamily(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestRacks(t *testing.T) {
	l, err := New("weir", 3, Dual, true)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"cp": "172.31.1.8/24 172.31.1.1", "worker1": "172.31.1.207/24 172.31.1.1", "worker2": "172.31.2.208/24 172.31.2.1",
		"worker3": "172.31.1.209/24 172.31.1.1", "client1": "172.31.1.55/24 172.31.1.1", "client3": "172.31.2.55/24 172.31.2.1",
	} {
		m, _ := l.Machine(name)
		if got := m.Addr.String() + " " + m.Families[0].Gateway.String(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
