/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* floating.h: pods' floating addresses, of which each leads to one pod, whatever the protocol.
 * docs/design/datapath.md, "Floating addresses", says what and why. */
#ifndef WEIR_FLOATING_H
#define WEIR_FLOATING_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "parse.h"

/* map weir_floating: hash ip_addr -> ip_addr; the pods' own addresses */
MAP(weir_floating, BPF_MAP_TYPE_HASH, ip_addr, ip_addr, 16384, BPF_F_NO_PREALLOC);

/* Is scratch.pkt, which begins a flow, for a floating address? Then scratch.fwd gets the pod's own.
 * What comes from outside is translated where the pod is: other nodes hand it on to there as what
 * is for the pod itself. */
__noinline int floating_leads(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct addr_value *pod;
	ip_addr *to;

	if (!w || !s || w->pkt.l4 == L4_ERROR)
		return 0;
	if (w->pkt.hook == HOOK_TO_UPLINK && skb->ifindex != s->host_ifindex)
		return 0;
	to = bpf_map_lookup_elem(&weir_floating, &w->pkt.key.daddr);
	if (!to)
		return 0;
	/* The stack sends on by weir0 what is from outside, too. */
	if (w->pkt.hook == HOOK_FROM_UPLINK || w->pkt.hook == HOOK_FROM_TUNNEL ||
	    (w->pkt.hook == HOOK_TO_UPLINK && skb->ingress_ifindex)) {
		pod = bpf_map_lookup_elem(&weir_addrs, to);
		if (!pod || pod->kind != ADDR_ENDPOINT)
			return 0;
	}
	w->fwd.daddr = *to;
	w->balance.floating = 1;
	return 1;
}

/* Does the open flow f of p's key go to a pod that no longer has the floating address? As with
 * Services, TCP goes on. */
static __always_inline int floating_left(const struct pkt *p, const struct flow_value *f)
{
	ip_addr *to;

	if ((f->flags & FLOW_REPLY) || (f->state & STATE_GATEWAY) || p->key.proto == IPPROTO_TCP ||
	    flow_svc(f)->proto || addr_same(&f->daddr, &p->key.daddr))
		return 0;
	to = bpf_map_lookup_elem(&weir_floating, &p->key.daddr);
	return !to || !addr_same(to, &f->daddr);
}

#endif
