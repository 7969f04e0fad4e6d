// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// dualWorld is a host whose pods have addresses of both families. With off, it is one on which IPv6
// is off for new interfaces, as distributions and administrators set it.
func dualWorld(t testing.TB, off bool) (w *world, pod *os.File) {
	t.Helper()
	w, pod = newWorld(t), newNetns(t)
	w.v6 = true
	for _, ns := range []*os.File{w.host, pod} {
		err := kernel.InNetns(int(ns.Fd()), func() error {
			if off {
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil {
					return err
				}
			}
			return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_ra", []byte("2"), 0)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return w, pod
}

func TestDualStackInterface(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprint("off=", off), func(t *testing.T) {
			w, ns := dualWorld(t, off)
			res := w.add("a", "c1", ns)
			if len(res.Addrs) != 2 || res.Addrs[1].Gateway != "fe80::1" {
				t.Fatalf("%+v", res)
			}
			v4, v6 := netip.MustParsePrefix(res.Addrs[0].Addr).Addr(), netip.MustParsePrefix(res.Addrs[1].Addr)
			if v6.Bits() != 128 || !testPool6.CIDR.Contains(v6.Addr()) {
				t.Errorf("address %s", v6)
			}
			host, err := w.link.LinkByName(res.Host.Name)
			if err != nil {
				t.Fatal(err)
			}
			w.checkHostSide(host, v6.Addr(), res.Pod.MAC)
			checkPodSide(t, ns, v6.Addr())
			exchange(t, w.host, ns, v4)
			exchange(t, w.host, ns, v6.Addr())
			ep := w.enforcer.attached[v6.Addr()]
			if !slices.Equal(ep.Addrs, []netip.Addr{v4, v6.Addr()}) || ep.IfIndex != host.Attrs().Index || ep.NetnsCookie == 0 {
				t.Errorf("endpoint: %+v", ep)
			}
			if again := w.add("a", "c1", ns); !slices.Equal(again.Addrs, res.Addrs) {
				t.Errorf("the same ADD again: %+v", again)
			}
			if err := w.do("DEL", "a", "c1", nil); err != nil {
				t.Error(err)
			}
			w.empty()
		})
	}
}

// checkHostSide: a router that takes no advertisements, and has no address by which it would speak
// of itself.
func (w *world) checkHostSide(host netlink.Link, addr netip.Addr, mac string) {
	t := w.t
	t.Helper()
	conf := "ipv6/conf/" + host.Attrs().Name + "/"
	wantSysctls(t, w.host, map[string]string{conf + "disable_ipv6": "0", conf + "accept_ra": "0", conf + "forwarding": "1"})
	if addrs, err := w.link.AddrList(host, netlink.FAMILY_ALL); err != nil || len(addrs) != 0 {
		t.Errorf("addresses of the host side: %v, %v", addrs, err)
	}
	wantNeigh(t, w.link, host.Attrs().Index, addr, mac)
	dst := hostNet(addr)
	routes, err := w.link.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Dst: &dst}, netlink.RT_FILTER_DST)
	if err != nil || len(routes) != 1 || routes[0].LinkIndex != host.Attrs().Index || routes[0].Protocol != 3 {
		t.Errorf("routes to the pod: %v, %v", routes, err)
	}
}

func checkPodSide(t *testing.T, ns *os.File, addr netip.Addr) {
	t.Helper()
	wantSysctls(t, ns, map[string]string{"ipv6/conf/eth0/disable_ipv6": "0", "ipv6/conf/eth0/accept_ra": "0", "ipv6/conf/eth0/accept_dad": "0"})
	pod, eth0 := inPod(t, ns)
	addrs, err := pod.AddrList(eth0, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, a := range addrs {
		if a.IP.Equal(addr.AsSlice()) {
			found = true
			if a.Flags&(unix.IFA_F_NODAD|unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != unix.IFA_F_NODAD {
				t.Errorf("%s cannot be used yet: flags %x", a, a.Flags)
			}
		}
	}
	if !found {
		t.Errorf("addresses in the pod: %v", addrs)
	}
	wantNeigh(t, pod, eth0.Attrs().Index, gateway6, macText(kernel.HostSideMAC))
}

func inPod(t *testing.T, ns *os.File) (*netlink.Handle, netlink.Link) {
	t.Helper()
	pod, err := netlink.NewHandleAt(netns.NsHandle(int(ns.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pod.Close)
	eth0, err := pod.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	return pod, eth0
}

func wantNeigh(t testing.TB, at *netlink.Handle, ifindex int, addr netip.Addr, mac string) {
	t.Helper()
	neighs, err := at.NeighList(ifindex, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(neighs, func(n netlink.Neigh) bool {
		return n.IP.Equal(addr.AsSlice()) && n.State == netlink.NUD_PERMANENT && n.HardwareAddr.String() == mac
	}) {
		t.Errorf("no permanent neighbour entry of %s with %s in %v", addr, mac, neighs)
	}
}

func wantSysctls(t testing.TB, ns *os.File, want map[string]string) {
	t.Helper()
	err := kernel.InNetns(int(ns.Fd()), func() error {
		for file, v := range want {
			b, err := os.ReadFile("/proc/sys/net/" + file)
			if got := strings.TrimSpace(string(b)); err != nil || got != v {
				t.Errorf("%s is %q, want %s (%v)", file, got, v, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestHostSideIsSilent: a pod hears nothing from its host side that it has not asked for, but the
// report that the kernel makes of the groups that every router is in (ff02::2 and the like). What
// would be sent is sent within a second or two of a link's start.
func TestHostSideIsSilent(t *testing.T) {
	w, ns := dualWorld(t, false)
	var fd int
	err := kernel.InNetns(int(ns.Fd()), func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(uint16(unix.ETH_P_ALL)<<8|uint16(unix.ETH_P_ALL)>>8))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		t.Fatal(err)
	}
	res := w.add("a", "c1", ns)
	exchange(t, w.host, ns, netip.MustParsePrefix(res.Addrs[1].Addr).Addr())
	buf := make([]byte, 2048)
	exchanged := 0
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING || string(buf[6:12]) != string(kernel.HostSideMAC[:]) {
			continue
		}
		switch frame := buf[:n]; {
		case len(frame) > 62 && frame[12] == 0x86 && frame[20] == 17:
			exchanged++
		case len(frame) > 62 && frame[12] == 0x86 && frame[20] == 0 && frame[54] == 58 && frame[62] == 143: // multicast listener report
		default:
			t.Errorf("the host side sent %x", frame)
		}
	}
	if exchanged == 0 {
		t.Error("the test's own datagram was not seen")
	}
}

func TestCheckFindsDamageOfIPv6(t *testing.T) {
	w, ns := dualWorld(t, false)
	res := w.add("a", "c1", ns)
	addr := netip.MustParsePrefix(res.Addrs[1].Addr).Addr()
	pod, eth0 := inPod(t, ns)
	host, err := w.link.LinkByName(res.Host.Name)
	if err != nil {
		t.Fatal(err)
	}
	dst := hostNet(addr)
	route := &netlink.Route{LinkIndex: host.Attrs().Index, Dst: &dst, Protocol: 3}
	any := net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	def := &netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: &any, Gw: gateway6.AsSlice()}
	w.checkFinds(t, ns, []damage{
		{"route to " + addr.String(), func() error { return w.link.RouteDel(route) }, func() error { return w.link.RouteAdd(route) }},
		{"default route by fe80::1", func() error { return pod.RouteDel(def) }, func() error { return pod.RouteAdd(def) }},
		{"lacks the address " + addr.String(), func() error { return pod.AddrDel(eth0, &netlink.Addr{IPNet: &dst}) }, nil},
	})
}

// TestIPv6Refused: a pod gets no address that nothing would carry, and it is said what to do.
func TestIPv6Refused(t *testing.T) {
	w, ns := dualWorld(t, false)
	w.settings.MTU = 1279
	if err := w.do("ADD", "a", "c1", ns); err == nil || err.Code != wire.CodeInvalidConfig || !strings.Contains(err.Message, "1280") {
		t.Error(err)
	}
	w.settings = testSettings
	w.settings.IPv6 = false
	for _, annotations := range []map[string]string{nil, {annotationFamilies: `["IPv6"]`}, {annotationAddrs: `["fd00:65::7"]`}} {
		w.v6 = annotations == nil
		w.pods.pods[model.Name{Namespace: "ns", Name: "a"}] = Pod{Annotations: annotations}
		if err := w.do("ADD", "a", "c1", ns); err == nil || err.Code != wire.CodeAddress || !strings.Contains(err.Message, "ipv6Support") {
			t.Errorf("%v: %v", annotations, err)
		}
	}
	w.empty()
	w.pods.pods[model.Name{Namespace: "ns", Name: "a"}] = Pod{Annotations: map[string]string{annotationFamilies: `["IPv4"]`}}
	w.v6 = true
	if res := w.add("a", "c1", ns); len(res.Addrs) != 1 {
		t.Errorf("a pod that wants IPv4 alone: %+v", res)
	}
}

// TestRestartFindsBothFamilies: endpoints are whole again also when one record of two is damaged or
// lost.
func TestRestartFindsBothFamilies(t *testing.T) {
	for _, lost := range []string{"none", "IPv4", "IPv6", "both"} {
		for _, how := range []string{"damaged", "removed"} {
			t.Run(lost+" "+how, func(t *testing.T) {
				w, ns := dualWorld(t, false)
				res := w.add("p", "c1", ns)
				want := w.enforcer.attached[netip.MustParsePrefix(res.Addrs[0].Addr).Addr()]
				for i, a := range want.Addrs {
					if lost != "both" && lost != []string{"IPv4", "IPv6"}[i] {
						continue
					}
					err := os.Remove(w.dir + "/" + a.String())
					if how == "damaged" {
						err = os.WriteFile(w.dir+"/"+a.String(), []byte("damaged"), 0o600)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				if lost == "both" {
					want.NetnsCookie = 0 // only the records know it
				}
				w.start()
				got, err := w.s.Restore(context.Background())
				if err != nil || len(w.s.IPAM.Problems()) != 0 {
					t.Fatal(err, w.s.IPAM.Problems())
				}
				if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
					t.Errorf("restored %+v, want %+v", got, want)
				}
				if w.consistent("p") != "c1" {
					t.Error("the pod is not whole")
				}
				if err := w.do("DEL", "p", "c1", nil); err != nil {
					t.Error(err)
				}
				w.empty()
			})
		}
	}
}

// TestHalfOfAnAddressPair: a family without a free address takes no address of the other.
func TestHalfOfAnAddressPair(t *testing.T) {
	w, ns := dualWorld(t, false)
	w.pods.pods[model.Name{Namespace: "ns", Name: "a"}] = Pod{Annotations: map[string]string{annotationPools6: `["gone"]`}}
	if err := w.do("ADD", "a", "c1", ns); err == nil || err.Code != wire.CodeAddress || !strings.Contains(err.Message, annotationPools6) {
		t.Error(err)
	}
	w.empty()
	w.pods.pods[model.Name{Namespace: "ns", Name: "a"}] = Pod{Annotations: map[string]string{
		annotationAddrs: `["10.65.9.9","fd00:65::9:9"]`, annotationPools6: `["six"]`}}
	if res := w.add("a", "c1", ns); len(res.Addrs) != 2 || res.Addrs[0].Addr != "10.65.9.9/32" || res.Addrs[1].Addr != "fd00:65::9:9/128" {
		t.Errorf("%+v", res)
	}
}
