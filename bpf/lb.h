/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* lb.h: from a frontend to a backend. */
#ifndef WEIR_LB_H
#define WEIR_LB_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "clock.h"
#include "maglev.h"
#include "reasons.h"

/* Is the port (network byte order) ruled out as one that `tcp_bit`, or its like for UDP or SCTP,
 * stands for? */
static __always_inline int lb_no_port(const struct settings *s, __be16 port, __u8 proto,
				      __u8 tcp_bit)
{
	__u32 at = (__u16)(port << 8 | port >> 8);
	__u32 word = at >> 3;
	struct port_bits *p;

	if (!(s->flags & SET_PORTS))
		return 0;
	p = bpf_map_lookup_elem(&weir_ports, &word);
	if (!p)
		return 0;
	return !(p->bits[at & 7] & (proto == IPPROTO_UDP  ? tcp_bit << PORT_UDP :
				    proto == IPPROTO_SCTP ? tcp_bit << PORT_SCTP :
							    tcp_bit));
}

/* The service that answers at (addr, port, proto); `at` is what weir_addrs says of addr, and
 * decides on node ports. */
static __always_inline struct svc_value *lb_find(const ip_addr *addr, __be16 port, __u8 proto,
						 const struct addr_value *at, int *node_port)
{
	struct svc_key key = { .addr = *addr, .port = port, .proto = proto };
	struct svc_value *v = bpf_map_lookup_elem(&weir_services, &key);

	*node_port = 0;
	if (v || !at || (at->kind != ADDR_HOST && at->kind != ADDR_NODE))
		return v;
	key.addr = addr_none();
	v = bpf_map_lookup_elem(&weir_services, &key);
	if (v && (v->flags & SVC_LOCAL_FRONTEND ? at->kind == ADDR_NODE :
						  !(at->flags & ADDR_NODE_PORTS)))
		return NULL;
	*node_port = 1;
	return v;
}

/* Is the frontend for this client? */
static __always_inline int lb_admits(const struct svc_value *v, const ip_addr *client)
{
	struct range_key key = { .len = 8 * (sizeof(key.id) + sizeof(key.addr)),
				 .id = v->id,
				 .addr = *client };

	return !(v->flags & SVC_RESTRICTED) || bpf_map_lookup_elem(&weir_ranges, &key);
}

/* The list that traffic of this node's pods and processes chooses from; -1: another node's port,
 * which is that node's to evaluate. */
static __always_inline int lb_scope_inside(const struct svc_value *v, __u8 kind, int node_port)
{
	if (!(v->flags & SVC_LOCAL))
		return SCOPE_ALL;
	if (node_port && kind == ADDR_NODE)
		return -1;
	return v->flags & SVC_EXTERNAL ? SCOPE_ALL : SCOPE_LOCAL;
}

/* The lists that a backend is in (enum live_list); NULL when it is gone. */
static __always_inline __u8 *lb_lists(const struct svc_key *id, const struct backend *b)
{
	struct live_key key = { .svc = *id, .backend = *b };

	key.svc.scope = 0;
	key.backend.flags = 0;
	return bpf_map_lookup_elem(&weir_live, &key);
}

/* The keys that lb_choose looks by, one after the other: together they would take much of the
 * stack. */
union lb_keys {
	struct affinity_key client;
	struct live_key live;
	struct backend_key slot;
};

static __always_inline void lb_key_client(union lb_keys *k, const struct svc_value *v,
					  const struct client *client)
{
	__builtin_memset(&k->client, 0, sizeof(k->client));
	k->client.svc = v->id;
	k->client.client = *client;
}

static __always_inline void lb_key_live(union lb_keys *k, const struct svc_key *id,
					const struct backend *b)
{
	__builtin_memset(&k->live, 0, sizeof(k->live));
	k->live.svc = *id;
	k->live.svc.scope = 0;
	k->live.backend.addr = b->addr;
	k->live.backend.port = b->port;
}

/* Chooses a backend of v from one of its lists, by the hash of the flow where the service wants
 * that; 0 = the flow is not known. Returns DROP_NONE or the reason why there is none. */
static __noinline int lb_choose(struct svc_value *v, __u8 scope, const struct client *client,
				__u32 hash, struct backend *out)
{
	union lb_keys key;
	struct affinity_value *av;
	struct settings *s = settings_get();
	struct backend *b = NULL;
	__u8 *lists;
	__u32 count, now = clock_now();

	if (!v || !client || !out || !s)
		return DROP_NO_BACKEND;
	count = scope == SCOPE_LOCAL ? v->local : v->count;
	if (!count)
		return v->count ? DROP_NO_LOCAL_BACKEND : DROP_NO_BACKEND;
	if (v->affinity) {
		lb_key_client(&key, v, client);
		av = bpf_map_lookup_elem(&weir_affinity, &key.client);
		if (av &&
		    (__s64)(__s32)(now - av->seen) * 1000 <= (__s64)v->affinity * s->per_second) {
			lb_key_live(&key, &v->id, &av->backend);
			lists = bpf_map_lookup_elem(&weir_live, &key.live);
			if (lists && (*lists & 1 << scope)) {
				*out = av->backend;
				if (av->seen != now)
					av->seen = now;
				return DROP_NONE;
			}
		}
	}
	if (v->table && hash)
		b = maglev_choose(v, scope, hash);
	key.slot.svc = v->id;
	key.slot.svc.scope = scope;
	key.slot.slot = bpf_get_prandom_u32() % count;
	if (!b)
		b = bpf_map_lookup_elem(&weir_backends, &key.slot);
	if (!b) { /* the list is just getting shorter */
		key.slot.slot = 0;
		b = bpf_map_lookup_elem(&weir_backends, &key.slot);
	}
	if (!b)
		return DROP_INTERNAL;
	*out = *b;
	out->flags = 0;
	if (v->affinity) {
		struct affinity_value first = { .backend = *out, .seen = now };

		lb_key_client(&key, v, client);
		bpf_map_update_elem(&weir_affinity, &key.client, &first, BPF_ANY);
	}
	return DROP_NONE;
}

#endif
