/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* frag.h: IP fragments. Only the first one has ports: it notes them under (source, destination,
 * identification, and protocol where all tell it), and the others take them from there. One that
 * comes before its first is kept, and sent again, to the hook where it came in, right after the
 * first has gone on.
 *
 * What is kept lies in rings of FRAG_SLOTS slots. A ring belongs to a pod's interface, or to
 * sources of the network, by hash: whoever sends many fragments without a first overwrites his own
 * ring, and no one of the network that of a pod. */
#ifndef WEIR_FRAG_H
#define WEIR_FRAG_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "clock.h"
#include "parse.h"
#include "drop.h"
#include "host_policy.h"
#include "forward.h"
#include "reply.h"
#include "source.h"

struct frag_saved {
	__u8 data[FRAG_PART * FRAG_PARTS];
};
MAP(weir_frag_saved, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct frag_saved, 1, 0);

/* Drops a fragment that is not carried where it could reach a pod; elsewhere it is left to the
 * stack. */
__noinline int frag_refuse(struct __sk_buff *skb, __u32 reason)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct addr_value *b;
	__u8 hook;

	if (!s || !w)
		return TC_ACT_SHOT;
	hook = w->pkt.hook;
	if (hook == HOOK_FROM_WORKLOAD || hook == HOOK_TO_WORKLOAD ||
	    (hook == HOOK_TO_UPLINK && skb->ifindex == s->host_ifindex))
		return drop_packet(skb, reason, 0);
	b = bpf_map_lookup_elem(&weir_addrs, &w->pkt.daddr);
	if (b && b->kind == ADDR_ENDPOINT)
		return drop_packet(skb, reason, 0);
	if (reason != DROP_FRAGMENT_NO_FIRST && host_is_guarded(skb, &w->pkt)) {
		struct addr_value *a = bpf_map_lookup_elem(&weir_addrs, &w->pkt.saddr);

		if (!a || a->kind != ADDR_NODE /* the tunnel's */ ||
		    (WEIR_FAMILY == 6 && w->pkt.hidden))
			return drop_packet(skb, reason, 0);
	}
	return forward_pass(skb);
}

/* Looks at the fragment in scratch.pkt: fills scratch.frag and .fkey. Returns -1 for one that
 * nobody sends in good faith (RFC 1858, 3128, 791). */
__noinline int frag_look(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct frag_info *g;
	struct pkt *p;
	__u8 words;

	if (!w)
		return -1;
	p = &w->pkt;
	g = &w->frag;
	if (ip_fragment(skb, p, g))
		return -1;
	g->released = 0;
	g->again = (skb->mark & MARK_MASK) == MARK_AGAIN ||
		   (skb->mark & MARK_MASK) == MARK_AGAIN_INNER;
	if (g->again)
		skb->mark &= ~MARK_MASK;
	__builtin_memset(&w->fkey, 0, sizeof(w->fkey));
	w->fkey.saddr = p->saddr;
	w->fkey.daddr = p->daddr;
	w->fkey.id = g->id;
	w->fkey.proto = ip_frag_proto(p->key.proto);
	w->fkey.hook = p->hook;
	if (p->hook == HOOK_FROM_WORKLOAD)
		w->fkey.iif = skb->ifindex;
	if (g->end == g->begin || g->end > 0xffff || (g->more && (g->end - g->begin) & 7))
		return -1;
	if (g->begin)
		return g->begin < ip_frag_head(p->key.proto) ? -1 : 0;
	if (p->l4 == L4_TCP && (bpf_skb_load_bytes(skb, p->l4_off + 12, &words, 1) ||
				p->l4_off + (__u32)(words >> 4) * 4 > g->frame))
		return -1;
	return 0;
}

static __always_inline struct frag_value *frag_find(struct scratch *w, struct settings *s)
{
	struct frag_value *v = bpf_map_lookup_elem(&weir_frags, &w->fkey);

	return v && !clock_past(clock_now(), v->seen, s->timeouts[TIMEOUT_FRAG]) ? v : NULL;
}

/* The ring of the fragment at hand. */
static __always_inline __u32 frag_ring(const struct frag_key *k)
{
	__u32 hash = k->iif;

	if (k->hook == HOOK_FROM_WORKLOAD)
		return hash % (FRAG_RINGS / 2);
#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		hash = (hash ^ k->saddr.w[i]) * 0x9e3779b1;
	return FRAG_RINGS / 2 + (hash >> 16) % (FRAG_RINGS / 2);
}

static __always_inline struct frag_slot *frag_slot(__u32 ring, __u32 at)
{
	__u32 index = ring * FRAG_SLOTS + at % FRAG_SLOTS;

	return bpf_map_lookup_elem(&weir_frag_slots, &index);
}

/* The bytes in one slot of a frame that has `left` bytes, at least one, from there on. Linux 6.1
 * does not conclude from a comparison with 0 that a length is at least 1. */
static __always_inline __u64 frag_part(__u64 left)
{
	__u64 last = left - 1;

	if (last > FRAG_PART - 1)
		last = FRAG_PART - 1;
	OPAQUE(last);
	return (last & (FRAG_PART - 1)) + 1;
}

/* Writes part `part` of the fragment in scratch.fkey into the slot at `at`. */
__noinline int frag_store(struct __sk_buff *skb, __u32 ring, __u32 at, __u32 part)
{
	struct scratch *w = scratch_get();
	struct frag_slot *slot = frag_slot(ring, at);
	__u32 off = part * FRAG_PART, now = clock_now();
	__u32 was;
	__u64 n;

	if (!w || !slot)
		return -1;
	if (part >= FRAG_PARTS || w->frag.frame <= off)
		return -1;
	n = frag_part(w->frag.frame - off);
	bpf_spin_lock(&slot->lock);
	was = slot->state;
	if (was != FRAG_BUSY)
		slot->state = FRAG_BUSY;
	bpf_spin_unlock(&slot->lock);
	if (was == FRAG_BUSY)
		return -1;
	if (was == FRAG_HOLDS && !slot->part)
		drop_count(skb, DROP_FRAGMENT_NO_FIRST, 0); /* its first never came */
	slot->key = w->fkey;
	slot->seen = now;
	slot->serial = at - part;
	slot->len = w->frag.frame;
	slot->part = part;
	was = bpf_skb_load_bytes(skb, off, slot->data, n) ? FRAG_FREE : FRAG_HOLDS;
	bpf_spin_lock(&slot->lock);
	slot->state = was;
	bpf_spin_unlock(&slot->lock);
	return was == FRAG_HOLDS ? 0 : -1;
}

/* Keeps the fragment in scratch.frag. -1 = it is too big. */
static __always_inline int frag_keep(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct frag_ring *r;
	__u32 parts, ring, at, now = clock_now();

	if (!w)
		return -1;
	parts = (w->frag.frame + FRAG_PART - 1) / FRAG_PART;
	if (!parts || parts > FRAG_PARTS)
		return -1;
	ring = frag_ring(&w->fkey);
	r = bpf_map_lookup_elem(&weir_frag_rings, &ring);
	if (!r)
		return -1;
	bpf_spin_lock(&r->lock);
	at = r->next;
	r->next = at + parts;
	r->seen = now;
	bpf_spin_unlock(&r->lock);
	for (__u32 i = 0; i < FRAG_PARTS; i++) {
		if (i < parts && frag_store(skb, ring, at + i, i))
			return -1;
	}
	/* With the lock in frag_release: either that sees this fragment, or we the note that it
	 * follows. */
	bpf_spin_lock(&r->lock);
	r->seen = now;
	bpf_spin_unlock(&r->lock);
	return 0;
}

/* Takes the slot for itself when it holds that part of that frame. */
static __always_inline int frag_claim(struct frag_slot *slot, __u32 serial, __u32 part)
{
	int mine;

	bpf_spin_lock(&slot->lock);
	mine = slot->state == FRAG_HOLDS && slot->serial == serial && slot->part == part;
	if (mine)
		slot->state = FRAG_BUSY;
	bpf_spin_unlock(&slot->lock);
	return mine;
}

static __always_inline void frag_free(struct frag_slot *slot)
{
	bpf_spin_lock(&slot->lock);
	slot->state = FRAG_FREE;
	bpf_spin_unlock(&slot->lock);
}

/* Sends the frame that begins in the slot at `at` again, when it waits for scratch.fkey. skb is
 * what carries it, and counts it; skb was written over when scratch.frag.dirty is set. Returns 0,
 * or -1 = skb could not take it. */
__noinline int frag_send(struct __sk_buff *skb, __u32 ring, __u32 at)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct frag_slot *slot = frag_slot(ring, at);
	struct frag_key *k;
	__u32 serial, len, off;
	int bad = 0;
	__u64 n;

	if (!w || !s || !slot || slot->state != FRAG_HOLDS || slot->part)
		return 0;
	k = &slot->key;
	if (k->id != w->fkey.id || k->proto != w->fkey.proto || k->hook != w->fkey.hook ||
	    k->iif != w->fkey.iif || !addr_same(&k->saddr, &w->fkey.saddr) ||
	    !addr_same(&k->daddr, &w->fkey.daddr) ||
	    clock_past(clock_now(), slot->seen, s->timeouts[TIMEOUT_FRAG]))
		return 0;
	serial = slot->serial;
	len = slot->len;
	w->frag.dirty = 1;
	if (!len || len > FRAG_PART * FRAG_PARTS || bpf_skb_change_tail(skb, len, 0))
		return -1;
	for (__u32 i = 0; i < FRAG_PARTS; i++) {
		off = i * FRAG_PART;
		if (len <= off)
			break;
		n = frag_part(len - off);
		slot = frag_slot(ring, at + i);
		if (!slot || !frag_claim(slot, serial, i)) {
			bad = 1; /* just being written over */
			continue;
		}
		if (bpf_skb_store_bytes(skb, off, slot->data, n, BPF_F_RECOMPUTE_CSUM))
			bad = 1;
		frag_free(slot);
	}
	if (bad)
		return 0;
	skb->mark = (skb->mark & ~MARK_MASK) | (WEIR_FAMILY == 4 && k->hook == HOOK_FROM_TUNNEL &&
								skb->ifindex != s->tunnel_ifindex ?
							MARK_AGAIN_INNER :
							MARK_AGAIN);
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		return 0;
	w->frag.sent++;
	return 0;
}

/* Sends again what waits for scratch.fkey, from the hook's interface. skb is the first fragment, as
 * it goes on; it looks the same afterwards. Returns -1 when skb is spoilt. What the loop changes
 * lies in the scratch map: Linux 6.1 follows each value of a register through each of its turns. */
__noinline int frag_release(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct frag_saved *saved;
	struct frag_ring *r;
	__u32 ring, at, seen, mark = skb->mark, zero = 0;
	__u64 len = skb->len;

	if (!w || !s)
		return 0;
	w->frag.dirty = w->frag.sent = 0;
	ring = frag_ring(&w->fkey);
	r = bpf_map_lookup_elem(&weir_frag_rings, &ring);
	if (!r)
		return 0;
	bpf_spin_lock(&r->lock);
	at = r->next;
	seen = r->seen;
	bpf_spin_unlock(&r->lock);
	if (!at || clock_past(clock_now(), seen, s->timeouts[TIMEOUT_FRAG]))
		return 0;
	saved = bpf_map_lookup_elem(&weir_frag_saved, &zero);
	if (!saved)
		return 0;
	OPAQUE(len);
	if (len > sizeof(saved->data))
		return 0;
	OPAQUE(len);
	if (len < ETH_HLEN || bpf_skb_load_bytes(skb, 0, saved->data, len))
		return 0;
	for (__u32 i = 0; i < FRAG_SLOTS; i++)
		frag_send(skb, ring, at + i);
	if (!w->frag.dirty)
		return 0;
	skb->mark = mark;
	OPAQUE(len);
	if (len > sizeof(saved->data))
		return -1;
	OPAQUE(len);
	if (len < ETH_HLEN)
		return -1;
	if (bpf_skb_change_tail(skb, len, 0) ||
	    bpf_skb_store_bytes(skb, 0, saved->data, len, BPF_F_RECOMPUTE_CSUM))
		return -1;
	if (trace_enabled)
		skb->cb[4] = w->frag.sent;
	return 0;
}

/* A fragment whose first did not come yet. */
__noinline int frag_wait(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct addr_value *a;
	struct pkt *p;

	if (!w || !s)
		return TC_ACT_SHOT;
	p = &w->pkt;
	a = bpf_map_lookup_elem(&weir_addrs, &p->saddr);
	if (p->hook == HOOK_FROM_WORKLOAD) {
		if (!a || a->kind != ADDR_ENDPOINT || a->ifindex != skb->ifindex)
			return drop_packet(skb, DROP_SPOOFED, 0);
	} else if (p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL) {
		if (a && (a->kind == ADDR_HOST || a->kind == ADDR_ENDPOINT))
			return drop_packet(skb, DROP_SPOOFED, 0);
		flow_clear(&w->fwd);
		source_forget(w);
		if (!w->frag.again && source_check(skb))
			return drop_packet(skb, DROP_SPOOFED, 0);
	} else {
		return frag_refuse(skb, DROP_FRAGMENT_NO_FIRST); /* the host's own come in order */
	}
	if (w->frag.again || frag_keep(skb))
		return frag_refuse(skb, DROP_FRAGMENT_NO_FIRST);
	if (trace_enabled) {
		skb->cb[0] = TRACE_KEPT;
		skb->cb[1] = skb->cb[2] = skb->cb[3] = 0;
	}
	if (frag_find(w, s)) /* the first went by on another CPU meanwhile */
		frag_release(skb);
	return TC_ACT_SHOT;
}

/* The first fragment in scratch.pkt goes on by a flow that puts an outer header on it: what comes
 * after it is let go before that. A packet that has the header cannot be made shorter than its
 * headers, as it must for carrying what waits. */
__noinline int frag_ahead(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct frag_value v = {};
	struct pkt *p;

	if (!w)
		return 0;
	p = &w->pkt;
	v.sport = p->key.sport;
	v.dport = p->key.dport;
	v.proto = p->key.proto;
	v.end = w->frag.end;
	v.seen = clock_now();
	bpf_map_update_elem(&weir_frags, &w->fkey, &v, BPF_ANY);
	w->frag.released = 1;
	if (p->hook == HOOK_TO_UPLINK || p->hook == HOOK_TO_WORKLOAD)
		return 0;
	return frag_release(skb);
}

/* The first fragment went on, by a flow or without one: it is noted, and those that waited for it
 * follow. Returns the program's return code, `ret` unless the packet is spoilt. */
__noinline int frag_first(struct __sk_buff *skb, int ret)
{
	struct scratch *w = scratch_get();
	struct frag_value v = {};
	struct pkt *p;

	if (!w || ret == TC_ACT_SHOT || w->answered || w->frag.released)
		return ret;
	p = &w->pkt;
	v.sport = p->key.sport;
	v.dport = p->key.dport;
	v.proto = p->key.proto;
	v.end = w->frag.end;
	v.seen = clock_now();
	if (p->untracked == UNTRACKED_PASSED || (!bpf_map_lookup_elem(&weir_flows, &p->key) &&
						 !bpf_map_lookup_elem(&weir_flows_new, &p->key))) {
		if (ret != TC_ACT_OK || p->hook == HOOK_TO_UPLINK)
			return ret;
		v.flags = FRAG_PASS;
	}
	bpf_map_update_elem(&weir_frags, &w->fkey, &v, BPF_ANY);
	if (p->hook == HOOK_TO_UPLINK || p->hook == HOOK_TO_WORKLOAD)
		return ret;
	if (frag_release(skb) < 0)
		return drop_packet(skb, DROP_REWRITE, 0);
	return ret;
}

#endif
