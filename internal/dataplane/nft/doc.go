// SPDX-License-Identifier: Apache-2.0

// Package nft is the driver of the nftables data plane: the kernel's routing, connection tracking
// and VXLAN, and nftables. docs/design/nftables.md is its contract. The driver owns the tables `ip
// weir` and `ip6 weir` (`arp weir` where pods are, `netdev weir` where there is a tunnel), the
// routes of its protocol number, and the devices with its alias, and touches nothing else.
//
// Desired state is data: the text of chains, sets, maps and their elements is rendered from a
// nodestate.State alone. The driver compares that with what it wrote, or on its first Apply with
// what it reads, and writes the difference as one transaction for each family: the kernel changes
// from one state to the next between two packets, so no order of writes has to be kept and no
// packet meets a half of a change. A changed endpoint or address is a few elements; a chain is
// written again only when its rules differ, which those of Services never do, and those that name
// pods' interfaces do with each pod of the node.
//
// # Packages
//
// Each imports only those above it; this package puts them together (driver.go).
//
//	table     a table as text, and as it is in the kernel
//	marks     what packet marks and ct marks hold; the numbers of nodes
//	hostnet   devices, routes, policy routing, proxy entries, settings
//	events    what rules show to nflog, as events
//	records   what connection tracking counts, as records of flows
//	expr      what rules share: names of sets, words
//	names     what pods were told of domain names; the queue (nfqueue) by which that is learned
//	services  lists of backends, affinity, consistent hashing
//	policy    policy of pods and host endpoints, untracked policy
//	egress    egress gateways: the choice of one, and what drops all else
//	chains    the chains that every node has
//	dryrun    a packet that nobody sends, evaluated by the rules in the kernel
//
// # Chains
//
// In the order in which a packet meets them (priority):
//
//	from-network   prerouting  raw (-300)       sources: anti-spoofing (a look-up of the source leads
//	                                            to the chain of its interface), who may use the
//	                                            tunnel, the sender's node as a mark
//	translate      prerouting  dstnat-1 (-101)  Services: the destination becomes a backend's (nat,
//	                                            once a flow); DSR flows (chains/dsr.go)
//	translate-own  output      dstnat-1 (-101)  the same for the node's own processes
//	admit          prerouting  filter-50        who may send with an address of ours; the ct mark
//	                                            remembers who handed a flow on, or whom it is handed
//	                                            on to; the packet's mark leads it there
//	                                            (hostnet/policy_routing.go); what was for a Service
//	                                            and found no backend is refused
//	forwarded      forward     filter (0)       what has no endpoint; then the chain judge
//	received       input       filter (0)       the chain judge
//	sent           output      filter (0)       what admit does, for the node's own processes; judge
//	sent-on        output      filter+1         where it was routed by a mark: segments fit the
//	                                            tunnel; the mark ends (forwarded does that itself)
//	leave          postrouting srcnat (100)     sources: natOutgoing, hairpin (nat, once a flow)
//
// # What is open
//
// A flow that was evaluated under the policy in force and has no route of its own has the policy's
// number as its whole ct mark. Its packets, once both ends have sent some, leave admit, forwarded,
// received and sent by their first rules (chains/filter_chains.go): what these do not ask before is
// who sends, and whether a pod is there to get it. Interfaces that most packets come and leave by
// are known by their indexes (chains/interface_index.go).
//
// # Where policy attaches
//
// The chain `judge` is where forwarded, received and sent end, for every packet in both directions,
// with the destination translated and the source not yet; first packets come by `judge-new`, which
// does not ask what only open flows need (where there are no host endpoints). What it drops is
// dropped; what returns goes on. Its chains and sets are made by policy.Render as part of the same
// table, and so of the same transaction.
//
// # Marks
//
// ct mark: bits 0 to 15 are policy's. Bits 16 to 28 are the number of the node that packets of one
// direction go to, whatever the routes say, 0 = none: with bit 30 those of the first direction,
// which are handed on, else the answers, with bit 31 through the tunnel. With bit 29 the flow came
// through it. The numbers 8189 to 8191 are no nodes': of flows whose answers the table main leads
// (marks.RoutesNumber), and of handshakes whose answers go directly to the client
// (chains/dsr_fallback.go). Bit 7 of both marks is Amazon's VPC CNI's (marks.PluginBit). Bits 29
// and 30 together are an egress gateway's flow (package egress). The packet mark has in bits 16 to
// 28 the number of the node that sent the packet, and from admit to forwarded (from sent to
// sent-on), with bit 29, of that which it goes to. Between translate and admit a new flow's ct mark
// is scratch, and so is the packet's priority: the number of a list of backends, and a slot or a
// backend in it. What policy keeps in the ct mark it sets after admit.
package nft
