// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

func TestHostileMACAddresses(t *testing.T) {
	w := newWorld(t)
	uplink := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 5}}, PeerName: "peer0"}
	if err := w.link.LinkAdd(uplink); err != nil {
		t.Fatal(err)
	}
	if err := w.link.LinkSetUp(uplink); err != nil {
		t.Fatal(err)
	}
	for _, gateway := range []string{"192.0.2.1", "fd00::1"} {
		if err := w.link.NeighSet(&netlink.Neigh{LinkIndex: uplink.Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(gateway), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(len(gateway))}}); err != nil {
			t.Fatal(err)
		}
	}
	victim := w.add("victim", "c1", newNetns(t))
	for _, tt := range []struct{ attack, mac string }{
		{"a pod asks by annotation for another pod's MAC address", victim.Pod.MAC},
		{"a pod asks by annotation for the gateway's MAC address", "02:00:00:00:00:09"},
		{"a pod asks by annotation for the MAC address of an IPv6 router", "02:00:00:00:00:07"},
		{"a pod asks by annotation for a MAC address that is no machine's", "01:00:5e:00:00:01"},
		{"a pod asks by annotation for the MAC address of the node's uplink", "02:00:00:00:00:05"},
	} {
		t.Run(tt.attack, func(t *testing.T) {
			hostile.Record(t, tt.attack, hostile.Tenant, hostile.ControlPlane, hostile.Both)
			w.pods.pods[model.Name{Namespace: "ns", Name: "evil"}] = Pod{Annotations: map[string]string{annotationMAC: tt.mac}}
			err := w.do("ADD", "evil", "c2", newNetns(t))
			if err == nil || err.Code != wire.CodeAnnotation || !strings.Contains(err.Message, annotationMAC) {
				t.Errorf("%s: %v", tt.mac, err)
			}
		})
	}
}

// A pod whose name is too long for the alias of its interface: its record cannot be made again from
// there.
func TestHostileRecordsLostOfLongNames(t *testing.T) {
	hostile.Record(t, "the records of a node are lost, and the address of a pod with a long name is given again", hostile.Operator, hostile.ControlPlane, hostile.Both)
	w := newWorld(t)
	w.v6 = true
	long := strings.Repeat("x", 250)
	req := w.request("ADD", long, "c1")
	req.UID = "uid"
	first, _, failure := w.s.Handle(ctx10(t), req, newNetns(t))
	if failure != nil {
		t.Fatal(failure)
	}
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	w.start()
	if _, err := w.s.Restore(ctx10(t)); err != nil {
		t.Error(err)
	}
	second := w.add("new", "c2", newNetns(t))
	for i := range first.Addrs {
		if first.Addrs[i].Addr == second.Addrs[i].Addr {
			t.Errorf("%s was given twice", first.Addrs[i].Addr)
		}
	}
	w.pods.pods[model.Name{Namespace: "ns", Name: "evil"}] = Pod{Annotations: map[string]string{annotationAddrs: `["` + netip.MustParsePrefix(first.Addrs[0].Addr).Addr().String() + `"]`}}
	if err := w.do("ADD", "evil", "c3", newNetns(t)); err == nil || err.Code != wire.CodeAddress {
		t.Errorf("asked for by annotation: %v", err)
	}
}
