/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* snat.h: which ports of the node's range a pod may have towards one destination, so that none
 * takes them all from the others. docs/design/datapath.md, "Ports", says how, and what it holds
 * against. */
#ifndef WEIR_SNAT_H
#define WEIR_SNAT_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "clock.h"

#define SNAT_TRIES 32
/* The range is cut into SNAT_GROUPS groups of as many windows. A pod has one window of each group:
 * the value at the group's number of a polynomial of degree 2 over the integers modulo this prime,
 * which its address names. Two different polynomials have two values in common at most, so two pods
 * have at most two windows in common. */
#define SNAT_GROUPS 11
#define SNAT_WINDOWS (SNAT_GROUPS * SNAT_GROUPS)
/* What comes from outside has the windows of the first SNAT_OUTSIDE groups, so that it leaves each
 * pod the others of its own. */
#define SNAT_OUTSIDE 5
/* Where windows would have fewer ports than this, the range is not divided. */
#define SNAT_WINDOW_LEAST 16

/* map weir_spent: LRU hash ip_addr -> struct spent; pods that found no port free among those that
 * they may have */
MAP(weir_spent, BPF_MAP_TYPE_LRU_HASH, ip_addr, struct spent, 1024, 0);

/* The number of a pod's polynomial: the last ten bits of its address, shifted by the others, so
 * that pods of one node, whose blocks are small, differ. */
static __always_inline __u32 snat_number(const ip_addr *pod)
{
	__u32 last = bpf_ntohl(pod->w[ADDR_WORDS - 1]), others = last >> 10;

#pragma unroll
	for (int i = 0; i < ADDR_WORDS - 1; i++)
		others ^= bpf_ntohl(pod->w[i]);
	return (last ^ (others * 0x9e3779b1u >> 22)) & 0x3ff;
}

/* Which ports the sender of p may have: a pod its windows, those outside the first groups, the
 * node's own processes all. */
static __always_inline void snat_begin(struct snat_walk *n, const struct settings *s,
				       const struct pkt *p, int pod)
{
	__u32 range = (__u32)s->snat_max - s->snat_min + 1;

	n->first = s->snat_min;
	n->size = range;
	n->groups = 1;
	n->number = 0;
	n->random = bpf_get_prandom_u32();
	n->own = n->oldest = 0;
	if (range < SNAT_WINDOWS * SNAT_WINDOW_LEAST)
		return;
	if (pod) {
		n->size = range / SNAT_WINDOWS;
		n->groups = SNAT_GROUPS;
		n->number = snat_number(&p->key.saddr);
	} else if (p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL) {
		n->size = range / SNAT_WINDOWS * SNAT_GROUPS * SNAT_OUTSIDE;
	}
}

/* The port to look at in the try i, host byte order. */
static __always_inline __u16 snat_at(const struct snat_walk *n, __u32 i)
{
	__u32 step = n->size > SNAT_TRIES ? n->size / SNAT_TRIES : 1;
	__u32 at = ((n->random & 0xffff) + i / n->groups * step) % n->size;
	__u32 x = (i + (n->random >> 16)) % n->groups;
	__u32 window = x * SNAT_GROUPS +
		       (n->number % SNAT_GROUPS + n->number / SNAT_GROUPS % SNAT_GROUPS * x +
			n->number / SNAT_WINDOWS * x * x) %
			       SNAT_GROUPS;

	return n->first + (n->groups == 1 ? 0 : window) * n->size + at;
}

/* The pod that sent scratch.pkt found no port: replaced = it takes that of a flow of its own, else
 * its packet is dropped. */
static __noinline int snat_note(int replaced)
{
	struct scratch *w = scratch_get();
	struct spent first = {}, *n;

	if (!w)
		return 0;
	n = bpf_map_lookup_elem(&weir_spent, &w->pkt.key.saddr);
	if (!n) {
		bpf_map_update_elem(&weir_spent, &w->pkt.key.saddr, &first, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&weir_spent, &w->pkt.key.saddr);
		if (!n)
			return 0;
	}
	__sync_fetch_and_add(replaced ? &n->replaced : &n->refused, 1);
	return 0;
}

#endif
