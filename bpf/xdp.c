/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* xdp.c: uplinks, before anything is made of a packet: what host endpoints deny to each packet by
 * itself ends here. Packets that are not plain to see (fragments, ICMP errors, whatever is odd) go
 * on: from_uplink looks closer, and evaluates those. */
#include "datapath.h"

/* The program for IPv6, which IPv4's calls. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 1);
} weir_xdp_ipv6 SEC(".maps");

/* What is said of the packet: enum untracked. */
static __always_inline int xdp_evaluate(struct xdp_md *ctx, struct scratch *w)
{
	struct pkt p;

	p.hook = HOOK_FROM_UPLINK;
	if (parse_packet(cursor_of_xdp(ctx), &p) != PARSED_OK || p.l4 == L4_ERROR || ip_is_link(&p))
		return UNTRACKED_UNKNOWN;
	return untracked_packet(cursor_of_xdp(ctx), &p, w, HOST_UNTRACKED_INGRESS);
}

/* Puts what was found out before the packet's data. */
static __always_inline void xdp_stamp(struct xdp_md *ctx, const struct settings *s, __u32 verdict)
{
	struct untracked_stamp *m;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*m)))
		return;
	m = (void *)(long)ctx->data_meta;
	if ((void *)(m + 1) > (void *)(long)ctx->data)
		return;
	m->magic = UNTRACKED_MAGIC;
	m->netns = (__u32)s->host_netns;
	m->ifindex = ctx->ingress_ifindex;
	m->verdict = verdict;
}

/* Is the frame for another machine? own is the interface's MAC address. */
static __always_inline int xdp_is_elsewhere(struct xdp_md *ctx, const struct link_key *own)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	return (void *)(eth + 1) <= (void *)(long)ctx->data_end && !(eth->h_dest[0] & 1) &&
	       __builtin_memcmp(eth->h_dest, own->mac, 6);
}

/* Is the frame of this type? */
static __always_inline int xdp_is(struct xdp_md *ctx, __u16 type)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	return (void *)(eth + 1) <= (void *)(long)ctx->data_end && eth->h_proto == bpf_htons(type);
}

SEC("xdp.frags")
int weir_arrive(struct xdp_md *ctx)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	__u32 zero = 0, in = ctx->ingress_ifindex, rule, *trace;
	struct link_key *own;
	int ret;

	if (!w || !s)
		return XDP_PASS;
	own = bpf_map_lookup_elem(&weir_uplinks, &in);
	/* A driver's part of an uplink (of a bond, say) has no host endpoint of its own. */
	if (!own)
		return XDP_PASS;
	/* from_uplink leaves it, too; where the interface has another MAC address by now, it evaluates
	 * what comes without a word of this. */
	if (xdp_is_elsewhere(ctx, own))
		return XDP_PASS;
	if (WEIR_FAMILY == 4 && xdp_is(ctx, ETH_P_IPV6))
		bpf_tail_call(ctx, &weir_xdp_ipv6, 0);
	if (!xdp_is(ctx, IP_ETHERTYPE))
		return XDP_PASS;
	ret = xdp_evaluate(ctx, w);
	if (ret != UNTRACKED_DENIED) {
		xdp_stamp(ctx, s, ret);
		return XDP_PASS;
	}
	/* A socket of the agent's own has its answers: from_uplink finds the same. */
	if (w->policy.proto == IPPROTO_TCP &&
	    host_socket_find(ctx, &w->policy.src, w->policy.sport, &w->policy.dst,
			     w->policy.dport) == HOST_SOCKET_AGENT)
		return XDP_PASS;
	rule = w->policy.rule;
	untracked_tell(w, ctx->ingress_ifindex, HOOK_FROM_UPLINK, DROP_UNTRACKED_INGRESS);
	drop_add(DROP_UNTRACKED_INGRESS, rule, bpf_xdp_get_buff_len(ctx));
	if (trace_enabled) {
		trace = bpf_map_lookup_elem(&weir_trace_rule, &zero);
		if (trace)
			*trace = rule;
	}
	return XDP_DROP;
}
