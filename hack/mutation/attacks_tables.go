// SPDX-License-Identifier: Apache-2.0

package main

// attacksTables are the guards of tables of the kernel that all pods of a node share.
var attacksTables = []mutant{
	{fault{"a pod fills a node's connection tracking with connections of its own", "internal/dataplane/nft/conntrack_quota.go",
		"func (p podConnections) shares(most int) map[netip.Addr]string {\n", "func (p podConnections) shares(most int) map[netip.Addr]string {\n	return nil\n"},
		"./test/netns", "^TestHostileConnections$"},
	{fault{"eight pods together fill a node's connection tracking", "internal/dataplane/nft/chains/filter_chains.go",
		`		"ct status and confirmed == 0 jump "+podBeginsChain,`, `		"ct status and confirmed != 0 jump "+podBeginsChain,`},
		"./test/netns", "^TestHostileConnectionsTogether$"},
	{fault{"a pod fills the node's table of neighbours by sending to many addresses of the link", "bpf/datapath.h",
		"	if (resolve_asked(&w->pkt, &w->fwd) && resolve_spent(skb))\n", "	if (resolve_asked(&w->pkt, &w->fwd) && resolve_spent(skb) < 0)\n"},
		"./test/netns", "^TestHostileNeighbours$"},
	{fault{"a pod fills the node's table of neighbours by asking in the names of many", "bpf/datapath.h",
		"		case PARSED_LINK: return resolve_link(skb);\n", "		case PARSED_LINK: return forward_pass(skb);\n"},
		"./test/netns", "^TestHostileNeighboursByLink$"},
	{fault{"a pod fills what the node notes of questions to DNS servers", nftNames + "/rules.go",
		"	b.rule(asks, overRate(\"asking\", source), pass)\n", ""},
		"./test/netns", "^TestHostileQuestionsNoted$"},
	{fault{"a DNS answer that a pod did not ask for says where a name of its policy leads, with nftables", nftNames + "/rules.go",
		"one(b.in(\"asked\", firstRegister, false), to", "one(to"},
		"./test/netns", "^TestHostileForgedQueued$"},
	{fault{"a second DNS answer to a question of a pod says where a name of its policy leads, with nftables", nftNames + "/reader.go",
		"	if r.done[q] || r.doneBefore[q] {", "	if r.done[q] && r.doneBefore[q] {"},
		"./test/netns", "^TestHostileForgedQueued$"},
}

const nftNames = "internal/dataplane/nft/names"
