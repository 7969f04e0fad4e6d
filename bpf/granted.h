/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* granted.h: what some pods send with sources that are not their own (allowedSourcePrefixes).
 * docs/design/datapath.md, "Sources", says what and why. */
#ifndef WEIR_GRANTED_H
#define WEIR_GRANTED_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"

MAP(weir_sources, BPF_MAP_TYPE_LPM_TRIE, struct source_key, ip_addr, 4096, BPF_F_NO_PREALLOC);

/* May a pod send scratch.pkt by the interface with the source that it has? Not with one
 * that somebody has. Its own address goes to scratch.source.sender. A function of its own, for
 * the verifier. */
__noinline int granted_to(__u32 ifindex)
{
	struct source_key key = { .len = 32 + ADDR_BITS, .ifindex = ifindex };
	struct scratch *w = scratch_get();
	ip_addr *own;

	if (!w)
		return 0;
	key.addr = w->pkt.key.saddr;
	if (bpf_map_lookup_elem(&weir_addrs, &key.addr))
		return 0;
	own = bpf_map_lookup_elem(&weir_sources, &key);
	if (!own || addr_is_none(own))
		return 0;
	w->source.sender = *own;
	return 1;
}

/* The pod that sent scratch.pkt by its interface, of whose source weir_addrs says a; NULL where it
 * may not send with that. */
static __always_inline struct addr_value *granted_pod(struct __sk_buff *skb, struct scratch *w,
						      struct addr_value *a)
{
	w->fwd.from = FROM_POD;
	if (!a) {
		if (!granted_to(skb->ifindex))
			return NULL;
		w->fwd.from = FROM_GRANTED;
		a = bpf_map_lookup_elem(&weir_addrs, &w->source.sender);
	}
	return a && a->kind == ADDR_ENDPOINT && a->ifindex == skb->ifindex ? a : NULL;
}

#endif
