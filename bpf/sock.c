/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* sock.c: Services are translated where a connection starts. The 6 forms carry IPv4-mapped
 * addresses where the programs are compiled for IPv4, and IPv6 ones where they are compiled for
 * that; the 4 forms are attached for IPv4 only. */
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "maps.h"
#include "lb.h"

#define ECONNREFUSED 111
#define SOCK_ALLOW 1
#define SOCK_REFUSE 0

static __always_inline void sock_client(struct client *c, __u64 netns, const struct settings *s)
{
	ip_addr *addr;

	if (netns == s->host_netns) {
		c->addr = s->node;
		return;
	}
	addr = bpf_map_lookup_elem(&weir_clients, &netns);
	if (addr) {
		c->addr = *addr;
		return;
	}
	c->netns[0] = (__u32)netns;
	c->netns[1] = (__u32)(netns >> 32);
}

static __always_inline void sock_cookie(struct sock_key *key, struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);

	key->cookie[0] = (__u32)cookie;
	key->cookie[1] = (__u32)(cookie >> 32);
}

/* The backend that a UDP socket got for an address before, unless that is gone. */
static __always_inline int sock_again(const struct sock_key *asked, const struct svc_value *v,
				      struct backend *be)
{
	struct sock_value *val = bpf_map_lookup_elem(&weir_sockets, asked);

	if (!val || !addr_same(&val->svc.addr, &v->id.addr) || val->svc.port != v->id.port ||
	    val->svc.proto != v->id.proto)
		return 0;
	be->addr = val->addr;
	be->port = val->port;
	return lb_lists(&v->id, be) != NULL;
}

static __always_inline struct sock_stream *sock_stream_of(const struct sock_key *key)
{
	__u32 at = key->cookie[0] % STREAM_SLOTS;

	return bpf_map_lookup_elem(&weir_streams, &at);
}

/* Remembers what a TCP socket asked for and what it got. */
static __always_inline void sock_note_stream(const struct sock_key *asked, const struct backend *be)
{
	struct sock_stream *t = sock_stream_of(asked);

	if (!t)
		return;
	bpf_spin_lock(&t->lock);
	t->cookie[0] = asked->cookie[0];
	t->cookie[1] = asked->cookie[1];
	t->got = be->addr;
	t->got_port = be->port;
	t->asked = asked->addr;
	t->asked_port = asked->port;
	bpf_spin_unlock(&t->lock);
}

/* What a TCP socket asked for, that got the address and port of key. */
static __always_inline int sock_stream_asked(const struct sock_key *key, ip_addr *addr,
					     __be16 *port)
{
	struct sock_stream *t = sock_stream_of(key);
	ip_addr asked;
	__be16 asked_port;
	int same;

	if (!t)
		return 0;
	bpf_spin_lock(&t->lock);
	same = t->cookie[0] == key->cookie[0] && t->cookie[1] == key->cookie[1] &&
	       t->got_port == key->port && addr_same(&t->got, &key->addr);
	asked = t->asked;
	asked_port = t->asked_port;
	bpf_spin_unlock(&t->lock);
	if (!same)
		return 0;
	*addr = asked;
	*port = asked_port;
	return 1;
}

/* Remembers what a UDP socket asked for and what it got. */
static __always_inline void sock_note(struct sock_key *asked, const struct svc_value *v,
				      const struct backend *be)
{
	struct sock_key got = *asked;
	struct sock_value val = { .addr = asked->addr, .port = asked->port, .svc = v->id };

	got.addr = be->addr;
	got.port = be->port;
	got.proto &= ~SOCK_ASKED;
	bpf_map_update_elem(&weir_sockets, &got, &val, BPF_ANY);
	val.addr = be->addr;
	val.port = be->port;
	bpf_map_update_elem(&weir_sockets, asked, &val, BPF_ANY);
}

/* Translates *addr, *port where they name a Service. A UDP socket of a pod that connects is left to
 * the packet path: there its flow gets another backend when its own is gone, which no program can
 * give a connected socket. Returns what the hook must return. */
static __always_inline int sock_balance(struct bpf_sock_addr *ctx, ip_addr *addr, __be16 *port,
					int connects)
{
	struct settings *s = settings_get();
	struct sock_key asked = {};
	struct addr_value *a;
	struct svc_value *v;
	struct backend be = {};
	struct client client = {};
	__u64 netns;
	int on_host, loopback, node_port, scope, wanted;
	struct bpf_sock *sk = ctx->sk;

	if (sk && (sk->mark & MARK_MASK) == MARK_OWN) /* the agent's own */
		return SOCK_ALLOW;
	if (!s || (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP))
		return SOCK_ALLOW;
	wanted = ctx->protocol == IPPROTO_TCP ? s->flags & SET_CTLB_TCP :
						(s->flags & SET_CTLB_UDP) && !connects;
	netns = bpf_get_netns_cookie(ctx);
	on_host = netns == s->host_netns;
	loopback = addr_is_loopback(addr);
	if ((!wanted || loopback) && !on_host)
		return SOCK_ALLOW;
	a = bpf_map_lookup_elem(&weir_addrs, addr);
	v = lb_find(addr, *port, ctx->protocol, a, &node_port);
	/* What never leaves the loopback device is seen here only. */
	if (!v ||
	    !(wanted || loopback || (v->flags & SVC_HOST_BACKEND) || (a && a->kind == ADDR_HOST)))
		return SOCK_ALLOW;
	scope = lb_scope_inside(v, a ? a->kind : ADDR_NONE, node_port);
	if (scope < 0)
		return SOCK_ALLOW;
	if (v->affinity || (v->flags & SVC_RESTRICTED))
		sock_client(&client, netns, s);
	if ((v->flags & SVC_RESTRICTED) &&
	    (addr_is_none(&client.addr) || !lb_admits(v, &client.addr)))
		return SOCK_ALLOW; /* its packets will tell */
	sock_cookie(&asked, ctx);
	asked.addr = *addr;
	asked.port = *port;
	asked.proto = ctx->protocol == IPPROTO_UDP ? IPPROTO_UDP | SOCK_ASKED : ctx->protocol;
	if (ctx->protocol != IPPROTO_UDP || !sock_again(&asked, v, &be)) {
		if (lb_choose(v, scope, &client, 0, &be)) {
			if (can_set_retval)
				bpf_set_retval(-ECONNREFUSED);
			return SOCK_REFUSE;
		}
		if (addr_same(&be.addr, addr) && be.port == *port)
			return SOCK_ALLOW;
		if (ctx->protocol == IPPROTO_TCP)
			sock_note_stream(&asked, &be);
		else
			sock_note(&asked, v, &be);
	}
	*addr = be.addr;
	*port = be.port;
	return SOCK_ALLOW;
}

/* What the socket asked for, where it got a backend instead. */
static __always_inline int sock_restore(struct bpf_sock_addr *ctx, ip_addr *addr, __be16 *port)
{
	struct sock_key key = { .addr = *addr, .port = *port, .proto = ctx->protocol };
	struct sock_value *val;

	sock_cookie(&key, ctx);
	if (ctx->protocol == IPPROTO_TCP && sock_stream_asked(&key, addr, port))
		return 1;
	val = bpf_map_lookup_elem(&weir_sockets, &key);
	if (!val)
		return 0;
	*addr = val->addr;
	*port = val->port;
	return 1;
}

static __always_inline int sock_forth4(struct bpf_sock_addr *ctx, int connects)
{
	ip_addr addr = { { ctx->user_ip4 } };
	__be16 port = (__be16)ctx->user_port;
	int ret = sock_balance(ctx, &addr, &port, connects);

	if (ret == SOCK_ALLOW && (addr.w[0] != ctx->user_ip4 || port != (__be16)ctx->user_port)) {
		ctx->user_ip4 = addr.w[0];
		ctx->user_port = port;
	}
	return ret;
}

static __always_inline int sock_back4(struct bpf_sock_addr *ctx)
{
	ip_addr addr = { { ctx->user_ip4 } };
	__be16 port = (__be16)ctx->user_port;

	if (sock_restore(ctx, &addr, &port)) {
		ctx->user_ip4 = addr.w[0];
		ctx->user_port = port;
	}
	return SOCK_ALLOW;
}

/* The address of an IPv6 socket's peer, when it is of the family that is compiled for: IPv4 comes
 * mapped. */
static __always_inline int sock_read6(struct bpf_sock_addr *ctx, ip_addr *addr)
{
	int mapped = !ctx->user_ip6[0] && !ctx->user_ip6[1] &&
		     ctx->user_ip6[2] == bpf_htonl(0xffff);

	if (WEIR_FAMILY == 4) {
		addr->w[0] = ctx->user_ip6[3];
		return mapped;
	}
#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		/* Each by itself, as the verifier wants it. */
		addr->w[i] = *(volatile __u32 *)&ctx->user_ip6[i];
	return !mapped;
}

static __always_inline void sock_write6(struct bpf_sock_addr *ctx, const ip_addr *addr, __be16 port)
{
#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++) /* of a mapped address the last word */
		*(volatile __u32 *)&ctx->user_ip6[4 - ADDR_WORDS + i] = addr->w[i];
	ctx->user_port = port;
}

static __always_inline int sock_forth6(struct bpf_sock_addr *ctx, int connects)
{
	__be16 port = (__be16)ctx->user_port;
	ip_addr addr, was;
	int ret;

	if (!sock_read6(ctx, &addr))
		return SOCK_ALLOW;
	was = addr;
	ret = sock_balance(ctx, &addr, &port, connects);
	if (ret == SOCK_ALLOW && (!addr_same(&addr, &was) || port != (__be16)ctx->user_port))
		sock_write6(ctx, &addr, port);
	return ret;
}

static __always_inline int sock_back6(struct bpf_sock_addr *ctx)
{
	__be16 port = (__be16)ctx->user_port;
	ip_addr addr;

	if (sock_read6(ctx, &addr) && sock_restore(ctx, &addr, &port))
		sock_write6(ctx, &addr, port);
	return SOCK_ALLOW;
}

#define SOCK_PROGRAM(hook, call) \
	SEC("cgroup/" #hook) \
	int weir_##hook(struct bpf_sock_addr *ctx) \
	{ \
		return call; \
	}

SOCK_PROGRAM(connect6, sock_forth6(ctx, 1))
SOCK_PROGRAM(sendmsg6, sock_forth6(ctx, 0))
SOCK_PROGRAM(recvmsg6, sock_back6(ctx))
SOCK_PROGRAM(getpeername6, sock_back6(ctx))

#if WEIR_FAMILY == 4
SOCK_PROGRAM(connect4, sock_forth4(ctx, 1))
SOCK_PROGRAM(sendmsg4, sock_forth4(ctx, 0))
SOCK_PROGRAM(recvmsg4, sock_back4(ctx))
SOCK_PROGRAM(getpeername4, sock_back4(ctx))
#endif
