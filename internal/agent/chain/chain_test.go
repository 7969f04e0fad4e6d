// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

// podLink makes what a CNI plugin makes of a pod: a pair of interfaces, of which the one in the
// node is called name, and a host route to each address.
func podLink(t *testing.T, node, pod *nettest.Namespace, inside, name string, mac net.HardwareAddr, addrs ...string) {
	t.Helper()
	pod.Do(t, "the pair, made in the pod", func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: inside, HardwareAddr: mac}, PeerName: name, PeerNamespace: netlink.NsFd(node.FD)})
	})
	pod.Do(t, "the pod's end up", func() error {
		l, err := netlink.LinkByName(inside)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	node.Do(t, "the node's end with its routes", func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		for _, a := range addrs {
			to := netip.MustParseAddr(a)
			dst := &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())}
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestFind: interfaces of pods that were there before, and of those that come and go, are found by
// routes and the API's addresses; those of nobody are held, and those of other names left alone.
func TestFind(t *testing.T) {
	nettest.NeedRoot(t, "making network namespaces")
	node, first, second := nettest.New(t, "node"), nettest.New(t, "a pod"), nettest.New(t, "another pod")
	firstMAC, secondMAC := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	podLink(t, node, first, "eth0", "vethone", firstMAC, "10.1.0.2", "fd00:10:1::2")
	podLink(t, node, first, "eth1", "other0", nil, "10.1.0.9")
	pods := map[netip.Addr]model.Name{
		netip.MustParseAddr("10.1.0.2"): {Namespace: "a", Name: "one"}, netip.MustParseAddr("fd00:10:1::2"): {Namespace: "a", Name: "one"},
		netip.MustParseAddr("10.1.0.3"): {Namespace: "a", Name: "two"}, netip.MustParseAddr("10.1.0.9"): {Namespace: "a", Name: "nine"},
	}
	var w *Watcher
	ctx, stop := context.WithCancel(t.Context())
	ended, changed := make(chan error, 1), make(chan struct{}, 1)
	node.Do(t, "the watcher", func() (err error) {
		w, err = New(slog.New(slog.DiscardHandler))
		return err
	})
	follower := nettest.Open(t, fmt.Sprintf("/proc/self/fd/%d", node.FD)) // a thread of its own
	go func() {
		follower.Do(t, "following", func() error {
			err := w.Run(ctx, func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			})
			ended <- err
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	find := func() (out Found) {
		node.Do(t, "looking", func() error { out = w.Find("veth", pods); return nil })
		return out
	}
	is := func(what string, want map[string]string, held ...string) {
		t.Helper()
		await.That(t, what, func() error {
			got := find()
			names := map[string]string{}
			for a, ep := range got.Endpoints {
				names[a.String()] = ep.Pod.Name + " " + ep.Interface + " " + net.HardwareAddr(ep.MAC[:]).String()
			}
			if have := slices.Sorted(maps.Values(got.Held)); !maps.Equal(names, want) || !slices.Equal(have, held) {
				return fmt.Errorf("endpoints %v and held %v, want %v and %v", names, have, want, held)
			}
			return nil
		})
	}
	one := "one vethone " + firstMAC.String()
	is("the pod that was there", map[string]string{"10.1.0.2": one, "fd00:10:1::2": one})
	podLink(t, node, second, "eth0", "vethtwo", secondMAC)
	is("a pod without a route", map[string]string{"10.1.0.2": one, "fd00:10:1::2": one}, "vethtwo")
	<-changed
	node.Do(t, "its route", func() error {
		l, err := netlink.LinkByName("vethtwo")
		if err != nil {
			return err
		}
		_, dst, _ := net.ParseCIDR("10.1.0.3/32")
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK})
	})
	is("its route", map[string]string{"10.1.0.2": one, "fd00:10:1::2": one, "10.1.0.3": "two vethtwo " + secondMAC.String()})
	node.Do(t, "the end of a pod", func() error {
		l, err := netlink.LinkByName("vethone")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	is("the end of a pod", map[string]string{"10.1.0.3": "two vethtwo " + secondMAC.String()})
}

// TestFindMadeInTheNode: a plugin that makes both ends in the node, under names that count as
// pods', writes the route, and moves one end into the pod then, as Azure CNI does.
func TestFindMadeInTheNode(t *testing.T) {
	nettest.NeedRoot(t, "making network namespaces")
	node, pod := nettest.New(t, "node"), nettest.New(t, "a pod")
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	pods := map[netip.Addr]model.Name{netip.MustParseAddr("10.1.0.7"): {Namespace: "a", Name: "seven"}}
	var w *Watcher
	look := func(what string, endpoints int, held ...string) {
		t.Helper()
		node.Do(t, what, func() error {
			if _, err := w.Read(); err != nil {
				return err
			}
			got := w.Find("azv", pods)
			if have := slices.Sorted(maps.Values(got.Held)); len(got.Endpoints) != endpoints || !slices.Equal(have, held) {
				t.Errorf("%s: endpoints %v and held %v, want %d and %v", what, got.Endpoints, have, endpoints, held)
			}
			for _, ep := range got.Endpoints {
				if ep.Interface != "azvseven" || net.HardwareAddr(ep.MAC[:]).String() != mac.String() {
					t.Errorf("%s: %+v", what, ep)
				}
			}
			return nil
		})
	}
	node.Do(t, "both ends in the node", func() (err error) {
		host := netlink.LinkAttrs{Name: "azvseven", HardwareAddr: net.HardwareAddr{0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa}}
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: host, PeerName: "azvseven2", PeerHardwareAddr: mac}); err != nil {
			return err
		}
		w, err = New(slog.New(slog.DiscardHandler))
		return err
	})
	look("no route yet", 0, "azvseven", "azvseven2")
	node.Do(t, "the route, and the other end to the pod", func() error {
		l, err := netlink.LinkByName("azvseven")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		_, dst, _ := net.ParseCIDR("10.1.0.7/32")
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst}); err != nil {
			return err
		}
		end, err := netlink.LinkByName("azvseven2")
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(end, pod.FD)
	})
	look("the pod has its end", 1)
}

// TestFindFurther: an interface that Amazon's egress-cni made, whatever its name, is the pod's
// whose network namespace it leads into, and held where that pod is not known; others with such
// names are left alone.
func TestFindFurther(t *testing.T) {
	nettest.NeedRoot(t, "making network namespaces")
	node, known, unknown := nettest.New(t, "node"), nettest.New(t, "a pod"), nettest.New(t, "another pod")
	podLink(t, node, known, "eth0", "enione", nil, "fd00:10:1::2")
	podLink(t, node, known, "v4if0", "veth0001", net.HardwareAddr{2, 0, 0, 0, 0, 4}, "169.254.172.2")
	podLink(t, node, known, "net1", "veth0002", nil, "10.9.0.2")
	podLink(t, node, unknown, "eth0", "enitwo", nil, "fd00:10:1::3")
	podLink(t, node, unknown, "v4if0", "veth0003", nil, "169.254.172.3")
	name, six, four := model.Name{Namespace: "a", Name: "one"}, netip.MustParseAddr("fd00:10:1::2"), netip.MustParseAddr("169.254.172.2")
	node.Do(t, "looking", func() error {
		w, err := New(slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		got := w.Find("eni", map[netip.Addr]model.Name{six: name})
		ep := got.Endpoints[four]
		if len(got.Endpoints) != 2 || ep == nil || ep.Pod != name || ep.Interface != "veth0001" || ep.MAC != [6]byte{2, 0, 0, 0, 0, 4} || got.Endpoints[six].Interface != "enione" {
			t.Errorf("endpoints %+v", got.Endpoints)
		}
		if held := slices.Sorted(maps.Values(got.Held)); !slices.Equal(held, []string{"enitwo", "veth0003"}) {
			t.Errorf("held: %v", held)
		}
		for what, of := range map[string]struct {
			pod  model.Name
			addr netip.Addr
			want int
		}{"the pod": {name, six, 2}, "an address that is not there": {name, netip.MustParseAddr("fd00:10:1::9"), 0}, "another pod": {model.Name{Namespace: "a", Name: "two"}, six, 0}} {
			if n := len(EndpointsOf(got.Endpoints, of.pod, []netip.Addr{of.addr})); n != of.want {
				t.Errorf("%s: %d endpoints, want %d", what, n, of.want)
			}
		}
		return nil
	})
}
