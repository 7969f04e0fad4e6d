// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"strings"
	"testing"
)

// TestOnAzure: with the real plugin of Azure CNI, whose pods have addresses of a subnet, see
// taken.over.
func TestOnAzure(t *testing.T) {
	l := newCloudLab(t, *azureFlag, "weir-az", "azure-cni")
	figures.begin(t)
	o := newOnCloud(t, l, "azure")
	onAzure(o, "azure-cni", "172.31.0.0/24").over(t, l.client(1).begin(t, "stream", at(o.srv1.addr, echoPort)))
}

// TestOnAzureOverlay is the same with addresses of an overlay, which nodes alone reach.
func TestOnAzureOverlay(t *testing.T) {
	l := newCloudLab(t, *overlayFlag, "weir-azov", "azure-cni-overlay")
	figures.begin(t)
	onAzure(newOnCloud(t, l, "azure"), "azure-cni-overlay", podNetwork).over(t)
}

func onAzure(o *onCloud, on, pods string) *taken {
	return &taken{onCloud: o, on: on, podCIDR: pods, wrote: o.ofAzure, network: func(t *testing.T) { o.azureNetwork(t, on == "azure-cni-overlay") }}
}

// ofAzure is what Azure CNI has written on a node, apart from what is a pod's.
func (l *lab) ofAzure(t *testing.T, node string) string {
	t.Helper()
	return l.must(t, node, "sh", "-ec", `sha256sum /etc/cni/net.d/*; ls /opt/cni/bin; ip rule; ip route | grep -v -e azv -e weir
iptables-save | grep -e 'IP-MASQ-AGENT' -e SWIFT | sed 's/ \[.*//' | sort`)
}

// azureNetwork is what Azure CNI does, with Weir and without.
func (o *onCloud) azureNetwork(t *testing.T, overlay bool) {
	for _, from := range []*place{o.cli1, o.cli2} {
		for _, to := range []*place{o.srv1, o.srv2} {
			from.reaches(t, at(to.addr, whoPort), to.pod, from.addr)
			from.reaches(t, at(to.addr, udpPort), to.pod, from.addr, "--udp")
		}
		// Within the virtual network a pod of a subnet has its own address, otherwise its node's.
		seen := from.addr
		if overlay {
			seen = nodes[from.machine]
		}
		from.reaches(t, at(client1Addr, whoPort), "", seen)
		from.reaches(t, at(client3Addr, whoPort), "", nodes[from.machine])
		from.reaches(t, at(client3Addr, udpPort), "", nodes[from.machine], "--udp")
		if gateway := o.must(t, from.machine, "ip", "neigh", "show", "169.254.1.1"); strings.TrimSpace(gateway) != "" {
			t.Errorf("%s knows the pods' gateway itself: %s", from.machine, gateway)
		}
	}
	for _, to := range []*place{o.srv1, o.srv2} {
		o.host("worker1", worker1Addr).reaches(t, at(to.addr, whoPort), to.pod, "")
		if overlay {
			allRefused(t, o.client(1).to(at(to.addr, whoPort)), o.client(3).to(at(to.addr, whoPort)))
		} else {
			o.client(1).reaches(t, at(to.addr, whoPort), to.pod, client1Addr)
		}
	}
}
