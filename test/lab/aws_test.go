// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// vpcNetwork is the subnet of the nodes, and of pods, in a lab with Amazon's VPC CNI; vpcNetwork6
// that of IPv6, in one of IPv6.
const vpcNetwork, vpcNetwork6 = "172.31.0.0/23", "fd00:172:31::/63"

// awsLab is a lab whose pods have addresses and interfaces of Amazon's VPC CNI, without Weir.
func awsLab(t *testing.T) *lab {
	t.Helper()
	return newCloudLab(t, *awsFlag, "weir-aws", "aws-vpc-cni")
}

// vpcInterfaces are a node's interfaces with their addresses for pods, as its address daemon is
// told.
func (l *lab) vpcInterfaces(t *testing.T, node string) (out [][]string) {
	t.Helper()
	var config struct{ Interfaces []struct{ Pods []string } }
	if err := json.Unmarshal([]byte(l.must(t, node, "cat", "/run/weir-lab/awsvpc.json")), &config); err != nil {
		t.Fatal(err)
	}
	for _, e := range config.Interfaces {
		out = append(out, e.Pods)
	}
	return out
}

// ofAWS is what Amazon's VPC CNI has written on a node, apart from what is a pod's.
func (l *lab) ofAWS(t *testing.T, node string) string {
	t.Helper()
	return l.must(t, node, "sh", "-ec", `sha256sum /etc/cni/net.d/*; ls /opt/cni/bin
(ip rule; ip -6 rule) | grep -e fwmark -e 'lookup local' -e '^32'; ip route show table 2 2>/dev/null || true # of a second interface
(iptables-save; ip6tables-save) | (grep -e '-A.*AWS' -e '^:AWS' || true) | sed 's/ \[.*//'`)
}

// onAWS is a lab with Amazon's VPC CNI.
type onAWS struct{ *onCloud }

// TestOnAWS: with the real plugin of Amazon's VPC CNI, and two interfaces at each node, see
// taken.over. Connections of pods with addresses of both interfaces, and of a machine outside of
// the cluster, are open all the time.
func TestOnAWS(t *testing.T) {
	l := awsLab(t)
	figures.begin(t)
	o := &onAWS{newOnCloud(t, l, "aws")}
	o.nri = true
	for _, node := range []string{"worker1", "worker2"} {
		for i, e := range l.vpcInterfaces(t, node) {
			if !slices.ContainsFunc(o.pods(), func(p *place) bool { return slices.Contains(e, p.addr) }) {
				t.Fatalf("%s: no pod has an address of interface %d", node, i)
			}
		}
	}
	of := &taken{onCloud: o.onCloud, on: "aws-vpc-cni", podCIDR: vpcNetwork, network: o.network, wrote: l.ofAWS, before: o.waitsForAgent}
	of.begins = func(t *testing.T) {
		t.Run("pod that requires the agent", o.startsWithAgent)
		t.Run("pools", o.pools)
	}
	of.over(t, o.cli2.begin(t, "stream", at(o.srv2.addr, echoPort)),
		l.client(1).begin(t, "stream", at(o.srv1.addr, echoPort)), l.client(1).begin(t, "stream", at(o.srv2.addr, echoPort)))
}

// TestOnAWSIPv6 is the same in a cluster of IPv6: pods have addresses of their node's prefix, and
// IPv4 by egress-cni for what they send out of the cluster.
func TestOnAWSIPv6(t *testing.T) {
	l := newCloudLab(t, *aws6Flag, "weir-aws6", "aws-vpc-cni", "--ip-family", "ipv6")
	figures.begin(t)
	o := &onAWS{newOnCloudOf(t, l, "aws", true)}
	o.nri = true
	for _, p := range o.pods() {
		if a, err := netip.ParseAddr(p.addr); err != nil || !netip.MustParsePrefix(vpcNetwork6).Contains(a) || p.addr6 != "" {
			t.Fatalf("%v has the addresses %q and %q", p, p.addr, p.addr6)
		}
	}
	of := &taken{onCloud: o.onCloud, on: "aws-vpc-cni", podCIDR: vpcNetwork6, network: o.network6, wrote: l.ofAWS}
	of.over(t, o.client(1).begin(t, "stream", at(o.srv1.addr, echoPort)), o.cli1.begin(t, "stream", at(client1Addr, echoPort)))
}

// network6 is what Amazon's VPC CNI does in a cluster of IPv6, with Weir and without: pods have
// their own addresses everywhere, and by IPv4 their node's.
func (o *onAWS) network6(t *testing.T) {
	for _, from := range []*place{o.cli1, o.cli2} {
		for _, to := range []*place{o.srv1, o.srv2} {
			from.reaches(t, at(to.addr, whoPort), to.pod, from.addr)
			from.reaches(t, at(to.addr, udpPort), to.pod, from.addr, "--udp")
		}
		for _, client := range []string{client1Addr, client3Addr} {
			from.reaches(t, at(six(client), whoPort), "", from.addr)
			from.reaches(t, at(six(client), udpPort), "", from.addr, "--udp")
		}
		from.reaches(t, at(client1Addr, whoPort), "", nodes[from.machine])
		from.reaches(t, at(client1Addr, udpPort), "", nodes[from.machine], "--udp")
	}
	for _, to := range []*place{o.srv1, o.srv2} {
		o.client(1).reaches(t, at(to.addr, whoPort), to.pod, six(client1Addr))
		o.host("worker1", worker1Addr).reaches(t, at(to.addr, whoPort), to.pod, six(worker1Addr))
	}
}

// network is what Amazon's VPC CNI does, with Weir and without.
func (o *onAWS) network(t *testing.T) {
	for _, from := range []*place{o.cli1, o.cli2} {
		for _, to := range []*place{o.srv1, o.srv2} {
			from.reaches(t, at(to.addr, whoPort), to.pod, from.addr)
			from.reaches(t, at(to.addr, udpPort), to.pod, from.addr, "--udp")
		}
		// Within the VPC a pod has its own address, outside of it its node's.
		from.reaches(t, at(client1Addr, whoPort), "", from.addr)
		from.reaches(t, at(client3Addr, whoPort), "", nodes[from.machine])
		from.reaches(t, at(client3Addr, udpPort), "", nodes[from.machine], "--udp")
	}
	for _, to := range []*place{o.srv1, o.srv2} {
		o.client(1).reaches(t, at(to.addr, whoPort), to.pod, client1Addr) // as a load balancer with targets of type ip
		o.host("worker1", worker1Addr).reaches(t, at(to.addr, whoPort), to.pod, worker1Addr)
	}
}

// waitsForAgent creates a pod whose containers containerd starts where the agent holds the start of
// pods, and nowhere else; startsWithAgent is that it starts then.
func (o *onAWS) waitsForAgent(t *testing.T) {
	pod := o.server("requires", "worker1", nil)
	pod.Annotations = map[string]string{"required-plugins.noderesource.dev": `["weir"]`}
	o.create(t, pod)
	eventually(t, time.Minute, "a container is refused without the agent", func() error {
		is, err := o.kube.CoreV1().Pods(o.ns).Get(t.Context(), "requires", metav1.GetOptions{})
		if err != nil || len(is.Status.ContainerStatuses) != 1 {
			return fmt.Errorf("it has no status yet: %w", err)
		}
		if w := is.Status.ContainerStatuses[0].State.Waiting; w == nil || !strings.Contains(w.Message, `required plugin "weir" not present`) {
			return fmt.Errorf("it is %+v", is.Status.ContainerStatuses[0].State)
		}
		return nil
	})
}

func (o *onAWS) startsWithAgent(t *testing.T) {
	p, err := o.ready("requires", 6*time.Minute) // the kubelet tries again after up to five
	if err != nil {
		t.Fatal(err)
	}
	o.cli2.reaches(t, at(p.addr, whoPort), "requires", o.cli2.addr)
}

// pools: one that only says which addresses are pods' may be the nodes' network, in which pods are,
// too; one that Weir would give addresses of may not.
func (o *onAWS) pools(t *testing.T) {
	for _, disabled := range []bool{true, false} {
		_, err := o.kubectl(fmt.Sprintf(`{"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "more"},
			"spec": {"cidr": "172.31.1.192/26", "disabled": %v, "vxlanMode": "Never", "natOutgoing": false}}`, disabled), "create", "--dry-run=server", "-f", "-")
		if refused := err != nil && strings.Contains(err.Error(), " of node "); refused == disabled || err != nil && disabled {
			t.Errorf("a pool of nodes' addresses, disabled %v: %v", disabled, err)
		}
	}
	if _, err := o.kubectl("", "patch", "ippool", "default", "--dry-run=server", "--type=merge", "-p", `{"spec":{"disabled":false}}`); err == nil || !strings.Contains(err.Error(), " of node ") {
		t.Errorf("Weir would give the nodes' addresses: %v", err)
	}
}
