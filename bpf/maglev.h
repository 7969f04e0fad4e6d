/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* maglev.h: consistent hashing: every node makes the same choice of a backend for a client's flow
 * (Maglev, NSDI 2016, section 3.4; user space computes the tables). */
#ifndef WEIR_MAGLEV_H
#define WEIR_MAGLEV_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "maps.h"

#define MAGLEV_SEED 0x57656972 /* equal in internal/maglev */

static __always_inline __u32 maglev_rotate(__u32 v, int by)
{
	return v << by | v >> (32 - by);
}

/* The kernel's jhash (linux/jhash.h) of a client's address and, unless its port does not count, of
 * that in a word of its own: what an expression of nftables can compute, too. Never 0, which is the
 * same slot as 1. */
static __always_inline __u32 maglev_hash(const ip_addr *client, __be16 port, int affine)
{
	__u32 a = 0xdeadbeef + sizeof(*client) + (affine ? 0 : sizeof(__u32)) + MAGLEV_SEED;
	__u32 b = a, c = a;
	const __u32 *w = client->w;

	if (ADDR_WORDS > 3) {
		a += w[0], b += w[1], c += w[2];
		a = (a - c) ^ maglev_rotate(c, 4), c += b;
		b = (b - a) ^ maglev_rotate(a, 6), a += c;
		c = (c - b) ^ maglev_rotate(b, 8), b += a;
		a = (a - c) ^ maglev_rotate(c, 16), c += b;
		b = (b - a) ^ maglev_rotate(a, 19), a += c;
		c = (c - b) ^ maglev_rotate(b, 4), b += a;
		w += 3;
	}
	a += w[0];
	if (!affine)
		b += port;
	c = (c ^ b) - maglev_rotate(b, 14);
	a = (a ^ c) - maglev_rotate(c, 11);
	b = (b ^ a) - maglev_rotate(a, 25);
	c = (c ^ b) - maglev_rotate(b, 16);
	a = (a ^ c) - maglev_rotate(c, 4);
	b = (b ^ a) - maglev_rotate(a, 14);
	c = (c ^ b) - maglev_rotate(b, 24);
	return c ? c : 1;
}

/* The backend of a hash among all, or where this node alone may answer, if it is here. NULL:
 * none. */
static __always_inline struct backend *maglev_choose(const struct svc_value *v, __u8 scope,
						     __u32 hash)
{
	void *table = bpf_map_lookup_elem(&weir_maglev, &v->id);
	struct backend *b;
	__u32 slot;

	if (!table || !v->table)
		return NULL;
	slot = (__u64)hash * v->table >> 32;
	b = bpf_map_lookup_elem(table, &slot);
	if (!b || (scope == SCOPE_LOCAL && !(b->flags & SLOT_LOCAL)))
		return NULL;
	return b;
}

#endif
