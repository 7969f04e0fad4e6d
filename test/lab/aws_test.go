// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// vpcNetwork is the subnet of the nodes, and of pods, in a lab with Amazon's VPC CNI.
const vpcNetwork = "172.31.0.0/23"

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
ip rule | grep -e fwmark -e 'lookup local' -e '^32'; ip route show table 2
iptables-save | grep -e '-A.*AWS' -e '^:AWS' | sed 's/ \[.*//'`)
}

// onAWS is a lab with Amazon's VPC CNI.
type onAWS struct{ *onCloud }

// TestOnAWS: with the real plugin of Amazon's VPC CNI, and two interfaces at each node, Weir takes
// pods that run over without a restart, carries Services with the client's address and enforces
// policy; when it goes, that network goes on as before. Connections are open all the time, of pods
// with addresses of both interfaces and of a machine outside of the cluster.
func TestOnAWS(t *testing.T) {
	l := awsLab(t)
	figures.begin(t)
	o := &onAWS{newOnCloud(t, l, "aws")}
	o.nri = true
	p := o.pods()
	for _, node := range []string{"worker1", "worker2"} {
		for i, e := range l.vpcInterfaces(t, node) {
			if !slices.ContainsFunc(p, func(p *place) bool { return slices.Contains(e, p.addr) }) {
				t.Fatalf("%s: no pod has an address of interface %d", node, i)
			}
		}
	}
	open := []*running{
		o.cli1.begin(t, "stream", at(o.srv2.addr, echoPort)), o.cli2.begin(t, "stream", at(o.srv1.addr, echoPort)),
		o.cli1.begin(t, "stream", at(o.srv1.addr, echoPort)), o.cli2.begin(t, "stream", at(o.srv2.addr, echoPort)),
		l.client(1).begin(t, "stream", at(o.srv1.addr, echoPort)), l.client(1).begin(t, "stream", at(o.srv2.addr, echoPort)),
		l.host("worker1", worker1Addr).begin(t, "stream", at(o.srv2.addr, echoPort)),
	}
	before, written := o.stays(t, p...), map[string]string{}
	for node := range nodes {
		written[node] = l.ofAWS(t, node)
	}
	o.network(t)
	o.startTime(t, "srv0", "start of a pod until it is ready, without Weir: median (s)")
	o.waitsForAgent(t)
	began := time.Now()
	l.mustWeir(t, "install", "--image", "weir.local/weir:dev", "--on", "aws-vpc-cni", "--pod-cidr", vpcNetwork, "--api-server", at(cpAddr, 6443))
	note(t, "installation until all agents are ready (s)", time.Since(began).Seconds())
	t.Run("pod that requires the agent", o.startsWithAgent)
	for node, was := range written {
		if is := l.ofAWS(t, node); is != was {
			t.Errorf("%s: what Amazon's VPC CNI wrote is other than before:\n%s\nbefore:\n%s", node, is, was)
		}
	}
	t.Run("pools", o.pools)
	t.Run("pods and Services", o.services)
	t.Run("network", o.network)
	t.Run("node ports", o.nodePorts)
	t.Run("DSR", o.direct)
	t.Run("policy", o.policies)
	t.Run("why", o.reasons)
	t.Run("new pods", o.newPods)
	t.Run("nftables", func(t *testing.T) { o.onNFTables(t, o.network) })
	l.mustWeir(t, "uninstall")
	t.Run("network without Weir", o.network)
	for node, was := range written {
		if is := l.ofAWS(t, node); is != was {
			t.Errorf("%s: Weir left what Amazon's VPC CNI wrote other than before:\n%s\nbefore:\n%s", node, is, was)
		}
		l.nothingOfWeir(t, node)
	}
	o.kept(t, before, open)
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
