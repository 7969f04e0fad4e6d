/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* maglev.h: consistent hashing: every node makes the same choice of a backend for a client's flow (Maglev, NSDI 2016,
 * section 3.4; user space computes the tables). */
#ifndef WEIR_MAGLEV_H
#define WEIR_MAGLEV_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "maps.h"

static __always_inline __u32 maglev_rotate(__u32 v, int by)
{
	return v << by | v >> (32 - by);
}

static __always_inline __u32 maglev_mix(__u32 h, __be32 word)
{
	h ^= maglev_rotate(bpf_ntohl(word) * 0xcc9e2d51, 15) * 0x1b873593;
	return maglev_rotate(h, 13) * 5 + 0xe6546b64;
}

/* MurmurHash3 (32 bits) of a flow: client, frontend (address 0 for node ports), ports, protocol. Never 0. */
static __always_inline __u32 maglev_hash(const ip_addr *client, __be16 client_port, const ip_addr *frontend, __be16 port,
					 __u8 proto)
{
	__u32 h = 0;

#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		h = maglev_mix(h, client->w[i]);
#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		h = maglev_mix(h, frontend->w[i]);
	h = maglev_mix(h, bpf_htonl((__u32)bpf_ntohs(client_port) << 16 | bpf_ntohs(port)));
	h = maglev_mix(h, bpf_htonl(proto));
	h ^= 2 * sizeof(ip_addr) + 8;
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	h ^= h >> 16;
	return h ? h : 1;
}

/* The backend of a hash among all, or where this node alone may answer, if it is here. NULL: none. */
static __always_inline struct backend *maglev_choose(const struct svc_value *v, __u8 scope, __u32 hash)
{
	void *table = bpf_map_lookup_elem(&weir_maglev, &v->id);
	struct backend *b;
	__u32 slot;

	if (!table || !v->table)
		return NULL;
	slot = hash % v->table;
	b = bpf_map_lookup_elem(table, &slot);
	if (!b || (scope == SCOPE_LOCAL && !(b->flags & SLOT_LOCAL)))
		return NULL;
	return b;
}

#endif
