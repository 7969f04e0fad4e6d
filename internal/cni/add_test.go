// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

func TestAddCheckDel(t *testing.T) {
	w := newWorld(t)
	ns := newNetns(t)
	res := w.add("a", "c1", ns)
	addr := netip.MustParsePrefix(res.Addrs[0].Addr)
	if addr.Bits() != 32 || !testPool.CIDR.Contains(addr.Addr()) || res.Addrs[0].Gateway != "169.254.1.1" || res.Pod.MTU != 1450 || res.Pod.Sandbox != "/run/netns/c1" {
		t.Errorf("result: %+v", res)
	}
	host, err := w.link.LinkByName(res.Host.Name)
	if err != nil {
		t.Fatal(err)
	}
	a := host.Attrs()
	if a.Alias != "weir:ns/a/c1" || a.HardwareAddr.String() != "ee:ee:ee:ee:ee:ee" || a.MTU != 1450 || a.Flags&net.FlagUp == 0 {
		t.Errorf("host side: %+v", a)
	}
	for file, want := range map[string]string{"ipv4/conf/" + a.Name + "/rp_filter": "2", "ipv4/conf/" + a.Name + "/forwarding": "1",
		"ipv4/conf/" + a.Name + "/proxy_arp": "0", "ipv6/conf/" + a.Name + "/disable_ipv6": "1"} {
		err := kernel.InNetns(int(w.host.Fd()), func() error {
			b, err := os.ReadFile("/proc/sys/net/" + file)
			if got := strings.TrimSpace(string(b)); err == nil && got != want {
				t.Errorf("%s is %s, want %s", file, got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	ep := w.enforcer.attached[addr.Addr()]
	if ep.NetnsCookie == 0 || ep.IfIndex != a.Index || ep.Pod != (model.Name{Namespace: "ns", Name: "a"}) || macText(ep.MAC) != res.Pod.MAC {
		t.Errorf("endpoint: %+v", ep)
	}
	exchange(t, w.host, ns, addr.Addr())

	if err := w.do("CHECK", "a", "c1", ns); err != nil {
		t.Error("CHECK:", err)
	}
	// The same ADD again gives the same answer.
	if again := w.add("a", "c1", ns); again.Addrs[0] != res.Addrs[0] || again.Pod.MAC != res.Pod.MAC {
		t.Errorf("second ADD: %+v", again)
	}
	if err := w.do("DEL", "a", "c1", nil); err != nil {
		t.Fatal(err)
	}
	w.empty()
	if err := w.do("DEL", "a", "c1", nil); err != nil {
		t.Error("second DEL:", err)
	}
	if err := w.do("CHECK", "a", "c1", ns); err == nil || err.Code != wire.CodeUnknownContainer {
		t.Error("CHECK after DEL:", err)
	}
}

// exchange sends a datagram from the host to the pod and an answer back, with no ARP and no
// neighbour solicitation.
func exchange(t *testing.T, host, pod *os.File, addr netip.Addr) {
	t.Helper()
	var server, client *net.UDPConn
	if err := kernel.InNetns(int(pod.Fd()), func() (err error) {
		server, err = net.ListenUDP("udp", &net.UDPAddr{IP: addr.AsSlice(), Port: 7777})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	err := kernel.InNetns(int(host.Fd()), func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		h.LinkSetUp(lo)
		for _, text := range []string{"10.1.2.3/32", "fd00:1::3/128"} {
			own, _ := netlink.ParseAddr(text)
			own.Flags = unix.IFA_F_NODAD // else it cannot be used at once
			if err := h.AddrReplace(lo, own); err != nil {
				return err
			}
			for { // until the kernel's worker made its route
				to, err := h.RouteGet(own.IP)
				if err == nil && len(to) > 0 && to[0].Type == unix.RTN_LOCAL {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
		client, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: addr.AsSlice(), Port: 7777})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	deadline := time.Now().Add(await.Patience)
	server.SetDeadline(deadline)
	client.SetDeadline(deadline)
	client.Write([]byte("hello"))
	buf := make([]byte, 16)
	n, from, err := server.ReadFromUDP(buf)
	if err != nil {
		t.Fatal("pod did not receive:", err)
	}
	if _, err := server.WriteToUDP(buf[:n], from); err != nil {
		t.Fatal("pod cannot send:", err)
	}
	if _, err := client.Read(buf); err != nil {
		t.Fatal("host did not receive the answer:", err)
	}
}

func TestDualStackAndAnnotations(t *testing.T) {
	w := newWorld(t)
	ns := newNetns(t)
	name := model.Name{Namespace: "ns", Name: "a"}
	w.pods.pods[name] = Pod{Annotations: map[string]string{annotationFamilies: `["IPv4","IPv6"]`, annotationMAC: "02:00:00:00:00:07"}}
	res := w.add("a", "c1", ns)
	if len(res.Addrs) != 2 || res.Addrs[1].Gateway != "fe80::1" || res.Pod.MAC != "02:00:00:00:00:07" {
		t.Errorf("%+v", res)
	}
	if err := w.do("CHECK", "a", "c1", ns); err != nil {
		t.Error(err)
	}
	if err := w.do("DEL", "a", "c1", nil); err != nil {
		t.Error(err)
	}
	w.empty()
	w.pods.pods[name] = Pod{Annotations: map[string]string{annotationAddrs: `["10.65.7.7"]`}}
	if res := w.add("a", "c2", newNetns(t)); res.Addrs[0].Addr != "10.65.7.7/32" {
		t.Errorf("%+v", res)
	}
	w.pods.pods[model.Name{Namespace: "ns", Name: "b"}] = w.pods.pods[name]
	if err := w.do("ADD", "b", "c3", newNetns(t)); err == nil || err.Code != wire.CodeAddress || !strings.Contains(err.Message, "10.65.7.7 is already taken by pod ns/a") {
		t.Error(err)
	}
	if err := w.do("DEL", "a", "c2", nil); err != nil {
		t.Error(err)
	}
	for annotation, text := range map[string]string{
		annotationAddrs: "10.65.0.1", annotationPools4: `[1]`, annotationPools6: `{`, annotationMAC: "ff:ff:ff:ff:ff:ff", annotationFamilies: `["IPv5"]`} {
		w.pods.pods[name] = Pod{Annotations: map[string]string{annotation: text}}
		err := w.do("ADD", "a", "c4", newNetns(t))
		if err == nil || err.Code != wire.CodeAnnotation || !strings.Contains(err.Message, annotation) || !strings.Contains(err.Message, "ns/a") {
			t.Errorf("%s=%s: %v", annotation, text, err)
		}
	}
	w.pods.pods[name] = Pod{Annotations: map[string]string{annotationPools4: `["nope"]`}}
	if err := w.do("ADD", "a", "c4", newNetns(t)); err == nil || !strings.Contains(err.Message, annotationPools4) || !strings.Contains(err.Message, `"nope"`) {
		t.Error(err)
	}
	w.empty()
}

// TestAddFailures makes each step of an ADD fail; nothing may be left.
func TestAddFailures(t *testing.T) {
	w := newWorld(t)
	ns := newNetns(t)
	w.enforcer.fail = errors.New("no programs")
	if err := w.do("ADD", "a", "c1", ns); err == nil || err.Code != wire.CodeEnforce {
		t.Error(err)
	}
	w.empty()
	w.enforcer.fail = nil

	w.ready = errors.New("not synced")
	if err := w.do("ADD", "a", "c1", ns); err == nil || err.Code != wire.CodeTryAgain {
		t.Error(err)
	}
	if err := w.do("STATUS", "", "", nil); err == nil || err.Code != wire.CodeNotAvailable {
		t.Error(err)
	}
	w.ready = &LimitedError{"the programs are gone"}
	if err := w.do("STATUS", "", "", nil); err == nil || err.Code != wire.CodeLimited {
		t.Error(err)
	}
	w.ready = nil
	if err := w.do("STATUS", "", "", nil); err != nil {
		t.Error(err)
	}

	w.pods.gone[model.Name{Namespace: "ns", Name: "a"}] = true
	if err := w.do("ADD", "a", "c1", ns); err == nil || err.Code != wire.CodeUnknownContainer {
		t.Error(err)
	}
	delete(w.pods.gone, model.Name{Namespace: "ns", Name: "a"})

	// The name is taken in the pod.
	pod, err := netlink.NewHandleAt(netns.NsHandle(int(ns.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	if err := pod.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatal(err)
	}
	if err := w.do("ADD", "a", "c1", ns); err == nil || err.Code != wire.CodeInterface || !strings.Contains(err.Message, "eth0") {
		t.Error(err)
	}
	w.empty()

	// The host name belongs to another pod by its alias.
	host := hostName("cali", model.Name{Namespace: "ns", Name: "b"}, "eth0")
	attrs = netlink.NewLinkAttrs()
	attrs.Name = host
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := w.link.LinkAdd(br); err != nil {
		t.Fatal(err)
	}
	w.link.LinkSetAlias(br, "weir:other/pod/c9")
	if err := w.do("ADD", "b", "c1", newNetns(t)); err == nil || !strings.Contains(err.Message, "other/pod") {
		t.Error(err)
	}
	w.link.LinkDel(br)

	w.blocks.err = errors.New("connection refused")
	w.s.IPAM.Configure(ipam.Config{})
	if err := w.do("ADD", "b", "c1", newNetns(t)); err == nil || err.Code != wire.CodeAddress {
		t.Error(err)
	}
	w.empty()
}

func TestCheckFindsDamage(t *testing.T) {
	w := newWorld(t)
	ns := newNetns(t)
	res := w.add("a", "c1", ns)
	addr := netip.MustParsePrefix(res.Addrs[0].Addr).Addr()
	pod, err := netlink.NewHandleAt(netns.NsHandle(int(ns.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	eth0, err := pod.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	host, _ := w.link.LinkByName(res.Host.Name)
	dst := hostNet(addr)
	route := &netlink.Route{LinkIndex: host.Attrs().Index, Dst: &dst, Scope: netlink.SCOPE_LINK, Protocol: 3}
	any := net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	def := &netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: &any, Gw: gateway4.AsSlice()}
	ep := w.enforcer.attached[addr]
	w.checkFinds(t, ns, []damage{
		{"is down", func() error { return w.link.LinkSetDown(host) }, func() error {
			if err := w.link.LinkSetUp(host); err != nil {
				return err
			}
			return w.link.RouteReplace(route)
		}},
		{"route to", func() error { return w.link.RouteDel(route) }, func() error { return w.link.RouteAdd(route) }},
		{"default route", func() error { return pod.RouteDel(def) }, func() error { return pod.RouteAdd(def) }},
		{"does not enforce", func() error { delete(w.enforcer.attached, addr); return nil }, func() error { w.enforcer.attached[addr] = ep; return nil }},
		{"is not on the host", func() error { return w.link.LinkSetAlias(host, "weir:x/y/z") }, func() error { return w.link.LinkSetAlias(host, "weir:ns/a/c1") }},
		{"lacks the address", func() error { return pod.AddrDel(eth0, &netlink.Addr{IPNet: &dst}) }, nil},
	})
	bad := request("CHECK", "a", "c1")
	bad.Addrs = []string{"10.99.0.1/32"}
	if _, _, err := w.s.Handle(ctx10(t), bad, ns); err == nil || !strings.Contains(err.Message, "10.99.0.1") {
		t.Error(err)
	}
}

// damage is something that CHECK must find, by what it says. It is repaired afterwards but where
// fix is nil, which is the last.
type damage struct {
	want        string
	break_, fix func() error
}

func (w *world) checkFinds(t *testing.T, ns *os.File, list []damage) {
	t.Helper()
	for _, c := range list {
		if err := c.break_(); err != nil {
			t.Fatal(c.want, err)
		}
		if err := w.do("CHECK", "a", "c1", ns); err == nil || !strings.Contains(err.Message, c.want) {
			t.Errorf("want %q, got %v", c.want, err)
		}
		if c.fix == nil {
			break
		}
		if err := c.fix(); err != nil {
			t.Fatal(c.want, err)
		}
		if err := w.do("CHECK", "a", "c1", ns); err != nil {
			t.Errorf("after the repair of %q: %v", c.want, err)
		}
	}
}
