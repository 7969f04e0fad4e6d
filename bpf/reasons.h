/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* reasons.h: why a packet was dropped. One table: C reads it as it is, the Go names are generated
 * from it (hack/gen-reasons). X(NAME, number, "text"), by number; numbers are never reused.
 * CONTRIBUTING.md says what else a new one needs. */
#ifndef WEIR_REASONS_H
#define WEIR_REASONS_H

/* A row is a line, as the generator reads it. */
/* clang-format off */
#define WEIR_REASONS(X)                                                                  \
	X(NONE, 0, "not dropped")                                                        \
	X(POLICY_INGRESS, 1, "denied by ingress policy")                                 \
	X(POLICY_EGRESS, 2, "denied by egress policy")                                   \
	X(SPOOFED, 3, "source address does not belong to the sender")                    \
	X(NO_BACKEND, 4, "service has no usable backend")                                \
	X(NO_ENDPOINT, 5, "no pod has this address of a local block")                    \
	X(NO_ROUTE, 6, "no route to the destination")                                    \
	X(NO_PORT, 7, "no free port for source translation")                             \
	X(NO_FLOW, 8, "packet belongs to no known connection")                           \
	X(MALFORMED, 9, "malformed or truncated packet")                                 \
	X(FRAGMENT, 10, "IP fragment")                                                   \
	X(FAMILY, 11, "address family that is not carried")                              \
	X(TTL, 12, "hop limit reached")                                                  \
	X(TUNNEL_SOURCE, 13, "tunnel packet that does not come from a node")             \
	X(TUNNEL_FROM_POD, 14, "tunnel packet sent by a pod, or led to a node by a service")\
	X(REWRITE, 15, "packet could not be rewritten")                                  \
	X(NO_LOCAL_BACKEND, 16, "only backends of this node may answer, and it has none")\
	X(SOURCE_RANGE, 17, "client is outside of the service's loadBalancerSourceRanges")\
	X(FRAGMENT_BAD, 20, "IP fragment that is cut too small, or overlaps")            \
	X(FRAGMENT_NO_FIRST, 21, "IP fragment whose first one did not come")             \
	X(ERROR_NO_FLOW, 22, "ICMP error about no known connection")                     \
	X(TOO_BIG, 30, "larger than the MTU of the path")                                \
	X(SHARE, 31, "the pod has its share of the connection table, which is nearly full")\
	X(HOST_INGRESS, 40, "denied by ingress policy of a host endpoint")               \
	X(HOST_EGRESS, 41, "denied by egress policy of a host endpoint")                 \
	X(HOST_PRE_DNAT, 42, "denied by pre-DNAT policy of a host endpoint")             \
	X(TO_HOST, 43, "pods may not talk to their node (defaultEndpointToHostAction)")  \
	X(UNTRACKED_INGRESS, 46, "denied by doNotTrack ingress policy of a host endpoint")\
	X(UNTRACKED_EGRESS, 47, "denied by doNotTrack egress policy of a host endpoint") \
	X(VLAN, 50, "frame with a VLAN tag, from a pod or out of the tunnel")            \
	X(FAMILY_LINK, 51, "neighbour discovery of a family that is not carried")        \
	X(REVERSE_PATH, 52, "the route to the source leads out by another interface (bpfEnforceRPF)")\
	X(NEIGHBOURS, 53, "the pod, or all pods, asked for too many new neighbours in a second")\
	X(INTERNAL, 54, "the programs' own tables were not there: a fault of Weir or the kernel")\
	X(NO_GATEWAY, 60, "no egress gateway of the pod is known and ready")             \
	X(PACKET_RATE, 70, "more packets than the pod may send or get in a second (QoS)")\
	X(CONNECTIONS, 71, "more connections than the pod may have open (QoS)")   \
	X(BANDWIDTH, 72, "beyond the pod's bandwidth, and too long to wait for (QoS)")
/* clang-format on */

enum drop_reason {
#define X(name, number, text) DROP_##name = number,
	WEIR_REASONS(X)
#undef X
};

/* What a stage of the data path says of a packet: one of these, or a drop reason, which is
 * greater. */
enum stage {
	STAGE_ANEW = -2, /* its flow has ended: it begins another one */
	STAGE_PASS = -1, /* it passes without a flow: the stack's */
	STAGE_GO_ON = DROP_NONE, /* the next stage */
};

#endif
