// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"strings"

	"github.com/weir-net/weir/test/cells"
)

// cluster is a lab with a CNI plugin, of a family, the test of package test/lab that runs in it,
// and the flag by which that takes the lab.
type cluster struct{ on, family, test, flag string }

var clusters = []cluster{
	{"aws-vpc-cni", "IPv4", "TestOnAWS", "-aws-lab"},
	{"aws-vpc-cni", "IPv6", "TestOnAWSIPv6", "-aws-ipv6-lab"},
	{"azure-cni", "IPv4", "TestOnAzure", "-azure-lab"},
	{"azure-cni-overlay", "IPv4", "TestOnAzureOverlay", "-azure-overlay-lab"},
	{"generic", "IPv4", "TestOnGeneric", "-on-lab"},
}

// name is what figures of it are of.
func (c cluster) name() string {
	if c.family == "IPv6" {
		return c.on + ", IPv6"
	}
	return c.on
}

// specs reports whether upstream's specs, and latency, are run in such a lab.
func (c cluster) specs() bool { return c.family == "IPv4" }

// A specs is an argument of test/e2e that chooses specs.
const (
	conformance = "--conformance"
	netpol      = "--group=netpol"
)

// migrations are the tests of package test/migrate that change nodes from another network plugin,
// each in a lab of its own.
var migrations = []struct{ from, what, test string }{
	{"from Calico", "nodes change in place and back: VXLAN", "TestInPlace"},
	{"from Calico", "nodes change in place and back: VXLAN between subnets", "TestInPlaceCrossSubnet"},
	{"from Calico", "nodes change in place and back: BGP", "TestInPlaceBGP"},
	{"from Calico", "nodes change in place and back: VXLAN between subnets, and BGP", "TestInPlaceVXLANAndBGP"},
	{"from flannel", "nodes change by drain and back", "TestFromFlannel"},
}

// egressAtStart is the test of package test/lab that counts packets with wrong sources.
const egressAtStart = "TestEgressAtStart"

// specs names upstream's specs as the test of a cell.
func specs(on, which string) string { return "test/e2e --on=" + on + " " + which }

// asks are all cells.
func asks() []cells.Cell {
	var out []cells.Cell
	of := ""
	on := func(plane, mode, what, test, why string) {
		family := cmp.Or(of, "IPv4")
		if strings.HasPrefix(what, "IPv6") {
			family = "IPv6"
		}
		out = append(out, cells.Cell{Mode: mode, Family: family, Plane: plane, What: what, Test: test, Why: why})
	}
	add := func(mode, what, test, why string) { on("eBPF", mode, what, test, why) }
	for _, c := range clusters {
		test := "test/lab " + c.test
		of = c.family
		add(c.on, "pods that run are taken over, and kept when Weir goes", test, "")
		parts := map[string]string{
			"pod": "network", "Service": "pods and Services", "NodePort": "node ports", "DSR": "DSR", "policy": "policy", "why": "why",
			"new pods, isolated until their policy is in force": "new pods", "removal": "network without Weir",
			"Services alongside a kube-proxy": "alongside a kube-proxy",
		}
		if c.on == "generic" {
			parts = map[string]string{
				"pod": "taken over", "Service": "taken over", "NodePort": "taken over", "DSR": "taken over", "policy": "taken over",
				"outside": "outside", "new pods": "new pods", "an agent is killed": "agents start again",
			}
		}
		for _, what := range []string{"pod", "Service", "Services alongside a kube-proxy", "NodePort", "DSR", "policy", "why", "outside", "new pods", "new pods, isolated until their policy is in force",
			"an agent is killed", "removal"} {
			if sub := parts[what]; sub != "" {
				add(c.on, what, test+"/"+strings.ReplaceAll(sub, " ", "_"), "")
			}
		}
		if c.on != "generic" {
			on("nftables", c.on, "on nftables alongside a kube-proxy, and from one data plane to the other", test+"/nftables_alongside_a_kube-proxy", "")
		}
		on("nftables", c.on, "on nftables, and from one data plane to the other", test+"/nftables", "")
		if c.specs() {
			add(c.on, "upstream's specs: conformance, and Services", specs(c.on, conformance), "")
			add(c.on, "upstream's specs: NetworkPolicy", specs(c.on, netpol), "")
		}
	}
	of = ""
	for _, m := range migrations {
		out = append(out, cells.Cell{Mode: m.from, Family: "IPv4", Plane: "nftables", What: m.what, Test: "test/migrate " + m.test})
	}
	for _, plane := range []string{"eBPF", "nftables"} {
		out = append(out, cells.Cell{Mode: "egress gateways", Family: "IPv4", Plane: plane, What: "no packet leaves with another address: at a pod's start, while gateways change, while agents start again",
			Test: "test/lab " + egressAtStart + "/" + plane})
	}
	aws := clusters[0].on
	add(aws, "a pod that does not start without the agent (NRI)", "test/lab TestOnAWS/pod_that_requires_the_agent", "")
	const both = "both"
	on(both, aws, "between namespaces: both interfaces, source/destination check", "test/netns TestOnAWS", "")
	on(both, aws, "between namespaces: from one data plane to the other", "test/netns TestSwitchOnAWS", "")
	on(both, aws, "IPv6, between namespaces", "test/netns TestOnAWSIPv6", "")
	add(aws, "`awsSrcDstCheck`, by EC2's protocol", "internal/controller/srcdst TestChecks", "")
	add(aws, "security groups for pods", "", "branch interfaces have no stand-in")
	azure := "azure-cni"
	add(azure, "multi-tenancy (`transparent-vlan`), and Windows", "", "no lab")
	add(azure, "IPv6", "", "labs of Azure CNI have IPv4 alone")
	return out
}
