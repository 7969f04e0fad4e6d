/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* host_socket.h: whether a packet answers, or goes on with, a connection that a process of this
 * node has open. */
#ifndef WEIR_HOST_SOCKET_H
#define WEIR_HOST_SOCKET_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"
#include "parse.h"
#include "scratch.h"

enum host_socket {
	HOST_SOCKET_NONE = 0,
	HOST_SOCKET_OPEN = 1, /* a socket of the node has the connection */
	HOST_SOCKET_AGENT = 2, /* the agent's own: it bears MARK_OWN */
};

#define SOCKET_LISTENS 10 /* TCP_LISTEN of the kernel */

/* Which socket of this network namespace has the connection of a TCP packet that came in: enum
 * known. One that listens has none. */
static __always_inline int host_socket_find(void *ctx, const ip_addr *src, __be16 sport,
					    const ip_addr *dst, __be16 dport)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	int known;

#if WEIR_FAMILY == 4
	tuple.ipv4.saddr = src->w[0];
	tuple.ipv4.daddr = dst->w[0];
	tuple.ipv4.sport = sport;
	tuple.ipv4.dport = dport;
	sk = bpf_sk_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
#else
#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++) {
		tuple.ipv6.saddr[i] = src->w[i];
		tuple.ipv6.daddr[i] = dst->w[i];
	}
	tuple.ipv6.sport = sport;
	tuple.ipv6.dport = dport;
	sk = bpf_sk_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
#endif
	if (!sk)
		return HOST_SOCKET_NONE;
	known = sk->state == SOCKET_LISTENS        ? HOST_SOCKET_NONE :
		(sk->mark & MARK_MASK) == MARK_OWN ? HOST_SOCKET_AGENT :
						     HOST_SOCKET_OPEN;
	bpf_sk_release(sk);
	return known;
}

/* The same of scratch.pkt, which came in by an uplink. What opens a connection belongs to none. */
__noinline int host_socket_of(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();

	if (!w || w->pkt.l4 != L4_TCP || parse_begins(&w->pkt))
		return HOST_SOCKET_NONE;
	return host_socket_find(skb, &w->pkt.key.saddr, w->pkt.key.sport, &w->pkt.key.daddr,
				w->pkt.key.dport);
}

#endif
