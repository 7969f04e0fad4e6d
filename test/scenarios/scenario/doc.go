// SPDX-License-Identifier: Apache-2.0

// Package scenario reads scenario files and plays them on a small world of nodes, hosts and a
// router, whatever carries the packets on the nodes. A file is a txtar archive
// (golang.org/x/tools/txtar): prose, then the files
//
//	cluster        the name of a file in clusters/, whose objects are there first; "flat" when absent
//	objects.yaml   Kubernetes and Weir objects, as the API server would show them
//	*.yaml         further objects, for apply
//	run            what happens, line by line; # begins a comment
//
// Lines of run:
//
//	send FROM PACKET              a packet starts (FROM: see World.origin; PACKET: see package packet)
//	again [WORD...]               the last packet that send or again sent, with these words replaced
//	reply [WORD...]               whoever got the last packet answers it; for TCP with ACK unless flags are given,
//	                              for SCTP with DATA unless a chunk is named
//	error FROM ADDR WORD...       FROM reports, with source ADDR, an ICMP error that quotes the last packet as it arrived
//	arrives AT [PATTERN]          where the last packet ended (AT as FROM; * matches any text), and how it looks:
//	                              every word of PATTERN must be one of the packet's, * matching any text
//	by NODE/HOOK=ACTION...        the way of the last packet, completely
//	drop NODE HOOK REASON [RULE]  the last packet ended so; RULE is part of "kind name detail" of the rule
//	answered NODE HOOK REASON [RULE]
//	                              the last packet was dropped so and answered by the node; arrives and by are about the answer
//	kept NODE HOOK                the last packet is a fragment that waits there for its first
//	then                          a fragment that the last packets set free comes in again, the oldest first; it becomes the last packet
//	event NODE TEXT               an event of the last packet on that node has TEXT in its text (sim.Event, rules by their names in
//	                              brackets); "event NODE none" when there is none
//	rule NODE RULE                RULE is part of the rule that allowed the last packet on that node
//	lost TEXT                     the last packet ended outside of the data planes; TEXT is part of where
//	connect FROM PROTO ADDR -> ADDR | refused
//	                              a socket asks for an address and is sent to another, or refused
//	sendto FROM PROTO ADDR -> ADDR | refused
//	                              the same of one datagram of a socket that is not connected; it is one socket throughout
//	apply FILE, delete KIND NAME  objects change; every node's state follows
//	env NAME=VALUE...             the environment of every node's agent becomes this
//	hand-over begins | ends       another data plane takes the place of each node's, or has done it (model.Local)
//	kube-proxy NODE               from now on a kube-proxy carries Services on that node (model.Local). Nothing plays it: what follows must not ask it
//	mtu NODE uplink|pods BYTES    the MTU of an interface; flows that are there learn it when they are evaluated again
//	holds NODE ADDRESS            the node's kernel has this address, and no table knows it
//	needs FEATURE...              what follows needs this of the data plane (package dataplane, Feature): one that lacks it is played
//	                              up to here
//	advance SECONDS               time passes on every node
package scenario
