// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/model"
)

// foreignPod makes what another plugin makes for a pod, by the name of our interfaces.
func (w *world) foreignPod(pod, addr string) Foreign {
	w.t.Helper()
	ns := newNetns(w.t)
	name := hostName("cali", model.Name{Namespace: "ns", Name: pod}, "eth0")
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns.Fd()))}
	if err := w.link.LinkAdd(veth); err != nil {
		w.t.Fatal(err)
	}
	l, err := w.link.LinkByName(name)
	if err == nil {
		err = w.link.LinkSetUp(l)
	}
	a := netip.MustParseAddr(addr)
	dst := hostNet(a)
	if err == nil {
		err = w.link.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &dst, Scope: netlink.SCOPE_LINK, Protocol: 3})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return Foreign{Pod: model.Name{Namespace: "ns", Name: pod}, UID: "uid-" + pod, ContainerID: "c-" + pod, Addrs: []netip.Addr{a}}
}

// TestAdopt: a pod that another plugin has started is one of ours afterwards, as it was: restored
// by the next agent, its address taken, and removed by a DEL of its container.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	p := w.foreignPod("web", "10.65.0.9")
	back := w.foreignPod("back", "10.65.0.11") // was ours before
	back.ContainerID = ""
	l, err := w.link.LinkByName(hostName("cali", back.Pod, "eth0"))
	if err == nil {
		err = w.link.LinkSetAlias(l, AliasBefore+alias(back.Pod, "c-back", "eth0"))
	}
	if err != nil {
		t.Fatal(err)
	}
	gone := Foreign{Pod: model.Name{Namespace: "ns", Name: "gone"}, ContainerID: "c-gone", Addrs: []netip.Addr{netip.MustParseAddr("10.65.0.10")}}
	for want := range 2 { // the second time nothing is left to be done
		if n, err := w.s.Adopt("cali", 3, []Foreign{p, back, gone}); n != 2-2*want || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	records := w.s.IPAM.Records()
	if len(records) != 2 || records[1].ContainerID != "c-back" || records[0].UID != "uid-web" || records[0].ContainerID != "c-web" || records[0].Address != p.Addrs[0] || records[0].MAC == "" {
		t.Fatalf("%+v", records)
	}
	w.start()
	eps, err := w.s.Restore(ctx10(t))
	if err != nil || len(eps) != 2 {
		t.Fatalf("%+v, %v", eps, err)
	}
	for _, ep := range eps {
		if (ep.Pod != p.Pod || ep.MAC != parseMAC(records[0].MAC)) && ep.Pod != back.Pod {
			t.Errorf("%+v", ep)
		}
	}
	for _, pod := range []string{"web", "back"} {
		if err := w.do("DEL", pod, "c-"+pod, nil); err != nil {
			t.Error(err)
		}
	}
	w.empty()
}

// TestAdoptOthers: an address that leads elsewhere is not taken over, whatever the pod says of it,
// and neither is anything of the pod.
func TestAdoptOthers(t *testing.T) {
	w := newWorld(t)
	victim, liar := w.foreignPod("victim", "10.65.0.9"), w.foreignPod("liar", "10.65.0.10")
	liar.Addrs = victim.Addrs
	if n, err := w.s.Adopt("cali", 3, []Foreign{liar, victim}); n != 1 || err == nil {
		t.Errorf("%d, %v", n, err)
	}
	records := w.s.IPAM.Records()
	if len(records) != 1 || records[0].Pod != "victim" {
		t.Errorf("%+v", records)
	}
}
