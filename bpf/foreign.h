/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* foreign.h: what the node's own processes exchange, and Weir has no part in. */
#ifndef WEIR_FOREIGN_H
#define WEIR_FOREIGN_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "parse.h"
#include "lb.h"
#include "rpf.h"
#include "source.h"

/* Traffic of the host's own that no Service and no flow can concern: neither port is one of
 * ours. */
static __always_inline int foreign_is(struct __sk_buff *skb, struct pkt *p,
				      const struct settings *s)
{
	struct addr_value *a, *b;
	__u16 port;

	if (!parse_has_ports(p))
		return 0;
	if (p->hook != HOOK_FROM_UPLINK && p->hook != HOOK_TO_UPLINK)
		return 0;
	if ((s->flags & SET_HOSTS) || !lb_no_port(s, p->key.dport, p->key.proto, PORT_TCP_FRONTEND))
		return 0;
	if (p->hook == HOOK_TO_UPLINK)
		return skb->ifindex != s->host_ifindex &&
		       lb_no_port(s, p->key.sport, p->key.proto, PORT_TCP_HOST);
	if (rpf_asked(p, s))
		return 0;
	port = bpf_ntohs(p->key.dport);
	if (port >= s->snat_min && port <= s->snat_max)
		return 0;
	b = bpf_map_lookup_elem(&weir_addrs, &p->key.daddr);
	if (!b || b->kind != ADDR_HOST)
		return 0;
	a = bpf_map_lookup_elem(&weir_addrs, &p->key.saddr);
	return !a || (a->kind != ADDR_HOST && a->kind != ADDR_ENDPOINT &&
		      !source_forges_tunnel(skb, p, s, a, b));
}

#endif
