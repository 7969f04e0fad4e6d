// SPDX-License-Identifier: Apache-2.0

package calico

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// overVXLAN makes of the recorded cluster one that can be changed in place.
func overVXLAN(u *unstructured.Unstructured) {
	switch u.GetKind() {
	case "IPPool":
		_ = unstructured.SetNestedField(u.Object, "Always", "spec", "vxlanMode")
	case "Node":
		address, _, _ := strings.Cut(u.GetAnnotations()[annotationAddress], "/")
		_ = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"type": "InternalIP", "address": address}}, "status", "addresses")
	}
}

// across is a change of a cluster whose pool has no encapsulation within a network.
func across(change func(*unstructured.Unstructured)) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		overVXLAN(u)
		set("IPPool", "default-ipv4-ippool", "CrossSubnet", "spec", "vxlanMode")(u)
		change(u)
	}
}

// overBIRD is one in which BIRD routes, and pools have no encapsulation.
func overBIRD(u *unstructured.Unstructured) {
	overVXLAN(u)
	set("ConfigMap", "calico-config", "bird", "data", "calico_backend")(u)
	set("IPPool", "default-ipv4-ippool", "Never", "spec", "vxlanMode")(u)
	if u.GetKind() == "Node" {
		all := u.GetAnnotations()
		delete(all, annotationTunnel)
		u.SetAnnotations(all)
	}
}

// overIPIP is one whose pool has IP in IP, as Calico's manifest makes it.
func overIPIP(mode string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		tunnel := u.GetAnnotations()[annotationTunnel]
		overBIRD(u)
		set("IPPool", "default-ipv4-ippool", mode, "spec", "ipipMode")(u)
		if u.GetKind() == "Node" {
			all := u.GetAnnotations()
			all[annotationIPIP] = tunnel
			u.SetAnnotations(all)
		}
	}
}

func TestInPlace(t *testing.T) {
	p := NewInPlace(recorded(t, across(unchanged)))
	if v := p.copyOf("IPPool", "default-ipv4-ippool").Object["spec"].(map[string]any)["vxlanMode"]; p.Stopped() || v != "CrossSubnet" {
		t.Fatalf("vxlanMode %v, %+v", v, p.Findings)
	}
	p = NewInPlace(recorded(t, overVXLAN))
	if p.Stopped() {
		t.Fatalf("%+v", p.Findings)
	}
	if v, set := p.copyOf("IPPool", "default-ipv4-ippool").Object["spec"].(map[string]any)["disabled"]; v != false || !set {
		t.Errorf("the copy of the pool has disabled %v", v)
	}
	if p.find("Pod shop/web-1", "metadata.ownerReferences") != nil {
		t.Error("a pod that keeps running is reported as one that is not made again")
	}
}

// TestInPlaceWithBIRD: pools need no encapsulation, nodes no address of a tunnel, and Weir is told
// to do what Calico does without a BGPConfiguration.
func TestInPlaceWithBIRD(t *testing.T) {
	p := NewInPlace(recorded(t, overBIRD))
	if p.Stopped() {
		t.Fatalf("%+v", p.Findings)
	}
	if f := p.find("DaemonSet kube-system/calico-node", variableBackend); f == nil {
		t.Errorf("nothing is said of sessions: %+v", p.Findings)
	}
	spec := p.copyOf("BGPConfiguration", "default").Object["spec"].(map[string]any)
	if spec["asNumber"] != int64(defaultASN) || spec["nodeToNodeMeshEnabled"] != true {
		t.Errorf("BGPConfiguration default is %v", spec)
	}
	// An object of the user's keeps what it says.
	c := recorded(t, overBIRD)
	c.Objects = append(c.Objects, &unstructured.Unstructured{Object: map[string]any{"apiVersion": Group + "/v1", "kind": "BGPConfiguration",
		"metadata": map[string]any{"name": "default"}, "spec": map[string]any{"nodeToNodeMeshEnabled": false}}})
	spec = NewInPlace(c).copyOf("BGPConfiguration", "default").Object["spec"].(map[string]any)
	if spec["asNumber"] != int64(defaultASN) || spec["nodeToNodeMeshEnabled"] != false {
		t.Errorf("BGPConfiguration default is %v", spec)
	}
	c = recorded(t, overVXLAN)
	c.Objects = append(c.Objects, &unstructured.Unstructured{Object: map[string]any{"apiVersion": Group + "/v1", "kind": "BGPConfiguration", "metadata": map[string]any{"name": "default"}}})
	if p := NewInPlace(c); p.copyOf("BGPConfiguration", "default") != nil || p.find("BGPConfiguration default", "") == nil {
		t.Errorf("BGP is switched on where Calico has none: %+v", p.Findings)
	}
}

// TestInPlaceWithIPIP: nodes with IP in IP are taken over as they are, and whoever changes them is
// told what their kernels need. The addresses of their devices are known.
func TestInPlaceWithIPIP(t *testing.T) {
	for _, mode := range []string{"Always", "CrossSubnet"} {
		c := recorded(t, overIPIP(mode))
		p := NewInPlace(c)
		if p.Stopped() || !c.UsesIPIP() {
			t.Fatalf("%s: %+v", mode, p.Findings)
		}
		if v := p.copyOf("IPPool", "default-ipv4-ippool").Object["spec"].(map[string]any)["ipipMode"]; v != mode {
			t.Errorf("the copy of the pool has ipipMode %v, want %s", v, mode)
		}
		if f := p.find("IPPool default-ipv4-ippool", "spec.ipipMode"); f == nil || f.Stops {
			t.Errorf("%s: nothing is said of kernels: %+v", mode, p.Findings)
		}
		if a := TunnelAddrs(&c.Nodes[0]); len(a) != 1 || a[0] != IPIPAddr(&c.Nodes[0]) || !a[0].Is4() {
			t.Errorf("%s: the node's tunnels have %v", mode, a)
		}
	}
	if recorded(t, overVXLAN).UsesIPIP() || recorded(t, func(u *unstructured.Unstructured) {
		overIPIP("Always")(u)
		set("IPPool", "default-ipv4-ippool", true, "spec", "disabled")(u)
	}).UsesIPIP() {
		t.Error("IP in IP is in use where no pool in use has it")
	}
}

// TestWhatStopsInPlace: each of these is more than nodes are taken over with.
func TestWhatStopsInPlace(t *testing.T) {
	annotated := func(kind, name, key, value string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			if u.GetKind() == kind && u.GetName() == name {
				all := u.GetAnnotations()
				if all == nil {
					all = map[string]string{}
				}
				all[key] = value
				u.SetAnnotations(all)
			}
		}
	}
	for _, c := range []struct {
		name, object, field string
		change              func(*unstructured.Unstructured)
	}{
		{"neither BIRD nor VXLAN", "DaemonSet kube-system/calico-node", "CALICO_NETWORKING_BACKEND", set("ConfigMap", "calico-config", "none", "data", "calico_backend")},
		{"a network of one node alone", "Node node-b", "metadata.annotations[" + annotationAddress + "]", across(annotated("Node", "node-b", annotationAddress, "192.0.2.12/32"))},
		{"no network", "Node node-b", "metadata.annotations[" + annotationAddress + "]", across(annotated("Node", "node-b", annotationAddress, "192.0.2.12"))},
		{"nobody who routes", "IPPool default-ipv4-ippool", "spec.vxlanMode", set("IPPool", "default-ipv4-ippool", "Never", "spec", "vxlanMode")},
		{"IP in IP and VXLAN", "IPPool default-ipv4-ippool", "spec.ipipMode", set("IPPool", "default-ipv4-ippool", "CrossSubnet", "spec", "ipipMode")},
		{"IP in IP that nobody routes", "IPPool default-ipv4-ippool", "spec.ipipMode", func(u *unstructured.Unstructured) {
			overIPIP("Always")(u)
			set("ConfigMap", "calico-config", "vxlan", "data", "calico_backend")(u)
		}},
		{"IP in IP that Felix does not do", "FelixConfiguration default", "spec.ipipEnabled", func(u *unstructured.Unstructured) {
			overIPIP("Always")(u)
			set("FelixConfiguration", "default", false, "spec", "ipipEnabled")(u)
		}},
		{"IP in IP within a network of one node alone", "Node node-b", "metadata.annotations[" + annotationAddress + "]", func(u *unstructured.Unstructured) {
			overIPIP("CrossSubnet")(u)
			annotated("Node", "node-b", annotationAddress, "192.0.2.12/32")(u)
		}},
		{"no device of IP in IP", "Node node-a", "metadata.annotations[" + annotationIPIP + "]", func(u *unstructured.Unstructured) {
			overIPIP("Always")(u)
			annotated("Node", "node-a", annotationIPIP, "")(u)
		}},
		{"a mode that there is not", "IPPool default-ipv4-ippool", "spec.ipipMode", func(u *unstructured.Unstructured) {
			overIPIP("Sometimes")(u)
		}},
		{"IPv6", "IPPool default-ipv4-ippool", "spec.cidr", set("IPPool", "default-ipv4-ippool", "fd00:1::/48", "spec", "cidr")},
		{"eBPF", "FelixConfiguration default", "spec.bpfEnabled", set("FelixConfiguration", "default", true, "spec", "bpfEnabled")},
		{"WireGuard", "FelixConfiguration default", "spec.wireguardEnabled", set("FelixConfiguration", "default", true, "spec", "wireguardEnabled")},
		{"another prefix", "FelixConfiguration default", "spec.interfacePrefix", set("FelixConfiguration", "default", "pod", "spec", "interfacePrefix")},
		{"another address", "Node node-a", "metadata.annotations[" + annotationAddress + "]", annotated("Node", "node-a", annotationAddress, "203.0.113.1/24")},
		{"no tunnel", "Node node-a", "metadata.annotations[" + annotationTunnel + "]", annotated("Node", "node-a", annotationTunnel, "")},
		{"another MAC address", "Node node-a", "metadata.annotations[" + annotationTunnelMAC + "]", annotated("Node", "node-a", annotationTunnelMAC, "66:00:00:00:00:01")},
		{"a lent address", "IPAMBlock 10-244-9-128-26", "spec.allocations", func(u *unstructured.Unstructured) {
			if u.GetName() == "10-244-9-128-26" {
				list, _, _ := unstructured.NestedSlice(u.Object, "spec", "attributes")
				list[1].(map[string]any)["secondary"].(map[string]any)["node"] = "node-a"
				_ = unstructured.SetNestedSlice(u.Object, list, "spec", "attributes")
			}
		}},
		{"an address of no pool", "Pod shop/web-1", "metadata.annotations[cni.projectcalico.org/ipAddrsNoIpam]", annotated("Pod", "web-1", "cni.projectcalico.org/ipAddrsNoIpam", `["192.0.2.99"]`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := NewInPlace(recorded(t, func(u *unstructured.Unstructured) {
				overVXLAN(u)
				c.change(u)
			}))
			if f := p.find(c.object, c.field); f == nil || !f.Stops || !p.Findings[0].Stops {
				t.Errorf("%+v", p.Findings)
			}
		})
	}
}

func block(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	for _, u := range recorded(t, unchanged).Objects {
		if u.GetKind() == "IPAMBlock" && u.GetName() == name {
			return u
		}
	}
	t.Fatalf("there is no block %s", name)
	return nil
}

// TestSeal: nothing of a sealed block is free, who has what stays, and the way back frees what no
// pod has.
func TestSeal(t *testing.T) {
	u := block(t, "10-244-8-64-26")
	read := func() (b Block, free []any) {
		t.Helper()
		b, ok, err := ReadBlock(u)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		free, _, _ = unstructured.NestedSlice(u.Object, "spec", "unallocated")
		return b, free
	}
	if err := Seal(u); err != nil {
		t.Fatal(err)
	}
	b, free := read()
	if len(free) != 0 || len(b.Allocations) != 4 || b.Allocations[0].Kind != "vxlanTunnelAddress" || b.Allocations[2].Pod != "web-1" || !b.Allocations[1].IsSealed() || !b.Allocations[3].IsSealed() {
		t.Fatalf("free %v, %+v", free, b.Allocations)
	}
	// web-1 has ended since, and Weir has started web-9.
	pod := Allocation{Handle: "k8s-pod-network.web-9", Node: "node-a", Namespace: "shop", Pod: "web-9"}
	if err := Unseal(u, map[netip.Addr]Allocation{netip.MustParseAddr("10.244.8.67"): pod}); err != nil {
		t.Fatal(err)
	}
	b, free = read()
	if !slices.Equal(free, []any{int64(1), int64(2)}) || len(b.Allocations) != 2 || b.Allocations[0].Kind != "vxlanTunnelAddress" || b.Allocations[1].Pod != "web-9" {
		t.Errorf("free %v, %+v", free, b.Allocations)
	}
	numbers, _, _ := unstructured.NestedMap(u.Object, "spec", "sequenceNumberForAllocation")
	if len(numbers) != 2 || numbers["0"] != int64(1732096800000000000) {
		t.Errorf("sequence numbers %v", numbers)
	}
}

func TestSealedBlock(t *testing.T) {
	u := SealedBlock(netip.MustParsePrefix("10.244.3.0/28"), "node-a")
	b, ok, err := ReadBlock(u)
	if err != nil || !ok || b.Name != "10-244-3-0-28" || b.Node != "node-a" || len(b.Allocations) != 16 {
		t.Errorf("%+v %v", b, err)
	}
	if a := Affinity(b.CIDR, "node-a"); a.GetName() != "node-a-10-244-3-0-28" {
		t.Errorf("%s", a.GetName())
	}
}
