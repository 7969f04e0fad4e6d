// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
)

// mutant is a fault and, where it takes away the guard against an attack, what carries the attack
// out: the attack succeeds with it, and so the test fails. The name of such a fault is the
// attack's, as internal/hostile records it (see recordedAs).
type mutant struct {
	fault
	// pkg and run are the package and the tests (TestHostile…) of the attack: they alone are run.
	// Of a fault without them all of tests are.
	pkg, run string
}

// all are the faults of policy and those of the guards against attacks.
func all() []mutant {
	var out []mutant
	for _, f := range faults {
		out = append(out, mutant{fault: f})
	}
	return slices.Concat(out, attacksFrontends, attacksServers, attacksLockout, attacksSources, attacksTunnel, attacksBudget, attacksPorts, attacksTables,
		attacksNodes, attacksAdmission, attacksAgent, attacksPods, attacksPeers, attacksFanOut, attacksWireGuard, attacksPage)
}

// recordedAs are the attacks of mutants that have another name than theirs: where several guards
// hold one attack, only one of the mutants can have its name.
var recordedAs = map[string]string{
	"a compromised node brings flows of others to the node to which a virtual machine is moved":                                       madeUpFlows,
	"a compromised node has another one lead its clients by a Service of its choice to a virtual machine":                             madeUpFlows,
	"a compromised node brings flows of a virtual machine to a node to which it is not moved":                                         madeUpFlows,
	"flows of a pod that is no virtual machine are brought to a node":                                                                 madeUpFlows,
	"a pod takes packets by a floating address that a node has":                                                                       floatingAttack,
	"a pod takes packets by a floating address that another pod has":                                                                  floatingAttack,
	"a younger pod takes the floating address of an older one":                                                                        floatingAttack,
	"a pod sends with an address that is not its own: one that its namespace was not granted, or that somebody has, of a pod or node": "a pod sends with an address that is not its own: one that its namespace was not granted, or that somebody has",
	"a host on the link sends with the address of another node's pod, to nftables":                                                    linkSendsAsPod,
	"a node on the link sends with the address of another node's pod, to nftables":                                                    linkSendsAsPod,
	"a node sends through the tunnel with the address of another node's pod, to nftables":                                             tunnelSendsAsOther,
	"a node sends through the tunnel with the address of another node, to nftables":                                                   tunnelSendsAsOther,
	"a host on the link sends with a node's address to a node port of this node, to nftables":                                         "a host on the link forges what a node hands on, and the answers to it",
	"a host on the link injects into a connection of a pod with a process of another node, to nftables":                               linkInjectsToNode,
	"a host on the link injects into a connection of a pod with a process of another node, with the node's address, to nftables":      linkInjectsToNode,
	"a host on the link sends VXLAN with a node's address as the outer source, to nftables":                                           "a host on the link sends VXLAN with a node's address as the outer source",
	"one client outside takes the node's ports for source NAT towards a name server by a node port, with nftables":                    "one client outside takes the node's ports for source NAT towards a name server by a node port",
	"a node publishes another node's link address, which so is checked of neither":                                                    "a node publishes another node's link address",
	"a host on the link names a pod behind a node in a routing header":                                                                "a host on the link names a pod behind a node, or wraps what is for it, in a routing header",
	"a host on the link wraps what is for a pod in a routing header for a node":                                                       "a host on the link names a pod behind a node, or wraps what is for it, in a routing header",
	"a host on the link names a pod behind a node in a routing header, with nftables":                                                 "a host on the link names a pod behind a node, or wraps what is for it, in a routing header",
	"a pod names another pod, or a host, behind a node in a routing header, with nftables":                                            "a pod names another pod, or a host, behind a node in a routing header",
	"a DNS answer that a pod did not ask for says where a name of its policy leads, with nftables":                                    "a DNS answer that a pod did not ask for says where a name of its policy leads",
	"a second DNS answer to a question of a pod says where a name of its policy leads, with nftables":                                 "a DNS answer that a pod did not ask for says where a name of its policy leads",
	"a pod reports groups that it listens to, or asks for listeners, beyond its interface, with nftables":                             "a pod reports groups that it listens to, or asks for listeners, beyond its interface",
}

const (
	linkSendsAsPod     = "a host on the link sends with the address of another node's pod"
	linkInjectsToNode  = "a host on the link injects into a connection of a pod with a process of another node"
	tunnelSendsAsOther = "a node sends through the tunnel with the address of another node, of its pod, or of the receiver's"
)

// attack is what the mutant lets succeed, as internal/hostile records it.
func (m mutant) attack() string { return cmp.Or(recordedAs[m.name], m.name) }
