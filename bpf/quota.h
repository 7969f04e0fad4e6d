/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* quota.h: how much of the table of established flows each pod has, so that none fills it alone.
 * User space counts now and then; what begins after that is counted here. */
#ifndef WEIR_QUOTA_H
#define WEIR_QUOTA_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"

MAP(weir_shares, BPF_MAP_TYPE_HASH, ip_addr, struct share, 4096, BPF_F_NO_PREALLOC);

static __noinline __u32 quota_used(const ip_addr *pod)
{
	struct share *n;

	if (!pod)
		return 0;
	n = bpf_map_lookup_elem(&weir_shares, pod);
	return n ? n->counted + n->begun : 0;
}

/* Has the pod that sent scratch.pkt its share, and the table little room? */
__noinline int quota_spent(__u32 each, __u32 most)
{
	struct scratch *w = scratch_get();

	if (!w || quota_used(&w->pkt.key.saddr) <= each)
		return 0;
	w->balance.client.addr = addr_none();
	return quota_used(&w->balance.client.addr) > most;
}

static __noinline int quota_add(const ip_addr *pod, __u32 entries)
{
	struct share first = { .begun = entries };
	struct share *n;

	if (!pod)
		return 0;
	n = bpf_map_lookup_elem(&weir_shares, pod);
	if (n)
		__sync_fetch_and_add(&n->begun, entries);
	else
		bpf_map_update_elem(&weir_shares, pod, &first, BPF_NOEXIST);
	return 0;
}

/* The flow of scratch.fwd, which came with scratch.pkt, and scratch.rev, where there is one, is
 * established now. */
static __noinline int quota_take(int both)
{
	struct scratch *w = scratch_get();
	__u32 entries = both ? 2 : 1;

	if (!w)
		return 0;
	if (!(w->fwd.flags & FLOW_REPLY)) {
		if (w->fwd.from == FROM_POD)
			quota_add(&w->pkt.key.saddr, entries);
	} else if (both && w->rev.from == FROM_POD) {
		quota_add(&w->fwd.daddr, entries);
	}
	w->balance.client.addr = addr_none();
	return quota_add(&w->balance.client.addr, entries);
}

#endif
