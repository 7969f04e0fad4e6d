/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* reply.h: what Weir answers by itself to a packet that it does not carry. The answer takes the
 * packet's place and goes back by the way that the packet came. What the answers are is in
 * docs/design/datapath.md. */
#ifndef WEIR_REPLY_H
#define WEIR_REPLY_H

#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "maps.h"
#include "scratch.h"
#include "parse.h"
#include "nat.h"
#include "drop.h"

/* The least time between two answers of a CPU in the long run, and how many may come at once. */
const volatile __u64 reply_interval_ns = 1000000;
const volatile __u32 reply_burst = 128;

#define REPLY_HEAD ((__u32)(sizeof(ip_head) + sizeof(struct icmp_head)))
#define REPLY_MOST IP_LEAST_MTU /* bytes of an ICMP error */
#define REPLY_QUOTE (REPLY_MOST - REPLY_HEAD)
/* Taken off the front of the packet on the way, to be beyond where a checksum that the sender left
 * to its device begins: bpf_skb_adjust_room then forgets about that checksum, which is not one of
 * the answer's. */
#define REPLY_ROOM 128
#define REPLY_SUM_STEP 512 /* bytes that bpf_csum_diff takes before Linux 6.13 */

/* Per CPU: what is being built, and the time until which the rate is used up. */
struct reply_work {
	__u64 used;
	__u32 answer; /* enum answer */
	__u32 len; /* of the IP packet */
	__u8 type; /* ICMP */
	__u8 code;
	__u16 mtu; /* host byte order, for answers that bear one */
	__u8 mac[12]; /* of the packet */
	/* the IP packet; up to the next multiple of 4 zeros follow */
	__u8 bytes[REPLY_MOST + REPLY_SUM_STEP];
};
MAP(weir_reply, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct reply_work, 1, 0);
MAP(weir_answers, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u64, ANSWERS, 0);

static __always_inline struct reply_work *reply_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_reply, &zero);
}

static __always_inline void reply_count(__u32 answer)
{
	__u64 *n = bpf_map_lookup_elem(&weir_answers, &answer);

	if (n)
		(*n)++;
}

/* What the reason for a drop is answered with, and its ICMP type and code. 0 = nothing. */
static __always_inline __u32 reply_kind(struct reply_work *r, const struct pkt *p, __u32 reason,
					__u32 reset)
{
	r->type = IP_UNREACHABLE;
	switch (reason) {
	case DROP_NO_BACKEND:
		if (p->l4 == L4_TCP && !p->fragment) {
			if (p->tcp & TCP_RST)
				return ANSWER_NONE;
			/* Who connects on this machine hears an ICMP error later. */
			if ((p->tcp & (TCP_SYN | TCP_ACK)) == TCP_SYN)
				return ANSWER_RESET;
		}
		r->code = IP_UNREACHABLE_PORT;
		return ANSWER_PORT_UNREACHABLE;
	case DROP_NO_ENDPOINT:
	case DROP_CONNECTIONS:
		if (p->l4 == L4_TCP && !p->fragment)
			return p->tcp & TCP_RST ? ANSWER_NONE : ANSWER_RESET;
		r->code = IP_UNREACHABLE_HOST;
		return ANSWER_HOST_UNREACHABLE;
	case DROP_POLICY_INGRESS:
	case DROP_POLICY_EGRESS:
	case DROP_HOST_INGRESS:
	case DROP_HOST_EGRESS:
	case DROP_HOST_PRE_DNAT:
	case DROP_TO_HOST:
		return reset && p->l4 == L4_TCP && !p->fragment && !(p->tcp & (TCP_SYN | TCP_RST)) ?
			       ANSWER_RESET :
			       ANSWER_NONE;
	case DROP_TTL:
		r->type = IP_TIME_EXCEEDED;
		r->code = 0; /* in transit */
		return ANSWER_TIME_EXCEEDED;
	case DROP_TOO_BIG:
		r->type = IP_TOO_BIG;
		r->code = IP_TOO_BIG_CODE;
		return ANSWER_TOO_BIG;
	}
	return ANSWER_NONE;
}

/* May this packet be answered? RFC 1122 section 3.2.2: no errors about errors, nor about what was
 * sent to many or by nobody in particular. The rest of ICMP counts as errors here. */
static __always_inline int reply_may(struct __sk_buff *skb, struct scratch *w, struct reply_work *r)
{
	struct pkt *p = &w->pkt;

	if (p->fragment && w->frag.begin)
		return 0;
	if (p->l4 == L4_ERROR || (p->l4 == L4_NONE && p->key.proto == IP_ICMP))
		return 0;
	if (!ip_somebody(&p->saddr))
		return 0;
	if (bpf_skb_load_bytes(skb, 0, r->mac, sizeof(r->mac)))
		return 0;
	return !(r->mac[0] & 1);
}

/* Is an answer left in this CPU's rate? */
static __always_inline int reply_take(struct reply_work *r)
{
	__u64 now = bpf_ktime_get_ns(), first = now - reply_burst * reply_interval_ns;

	if ((__s64)(r->used - first) < 0)
		r->used = first;
	if ((__s64)(now - r->used - reply_interval_ns) < 0)
		return 0;
	r->used += reply_interval_ns;
	return 1;
}

/* The checksum of `bytes` bytes, 0 to the next multiple of 4, and of what `sum` stands for. */
static __always_inline __u16 reply_sum(const __u8 *from, __u32 bytes, __s64 sum)
{
#pragma unroll
	for (__u32 at = 0; at < REPLY_MOST; at += REPLY_SUM_STEP) {
		__u64 n = at < bytes ? bytes - at : 0;

		n = (n + 3) & ~3ull;
		OPAQUE(n);
		if (n > REPLY_SUM_STEP)
			n = REPLY_SUM_STEP;
		sum = bpf_csum_diff(NULL, 0, (__be32 *)(from + at), n, sum);
	}
	return (__u16)~csum_fold((__u32)sum);
}

/* The IP header of the answer, before `bytes` of upper layer. */
static __always_inline void reply_ip(struct reply_work *r, const ip_addr *src, const ip_addr *dst,
				     __u8 proto, __u8 tos, __u32 bytes)
{
	ip_head ip;

	ip_make(&ip, src, dst, proto, tos, bytes);
	__builtin_memcpy(r->bytes, &ip, sizeof(ip));
	ip_seal(&ip, reply_sum(r->bytes, sizeof(ip), 0));
	__builtin_memcpy(r->bytes, &ip, sizeof(ip));
}

/* An ICMP error about the packet, from src. */
static __always_inline int reply_error(struct __sk_buff *skb, struct pkt *p, struct reply_work *r,
				       const ip_addr *src)
{
	struct icmp_head icmp = { .type = r->type, .code = r->code, .sequence = bpf_htons(r->mtu) };
	ip_head ip;
	__u64 quote; /* all of a register, so that its bounds stay known */

	if (bpf_skb_load_bytes(skb, ETH_SIZE, &ip, sizeof(ip)))
		return -1;
	quote = ip_bytes(&ip);
	if (!quote) /* too long for the header's field, or IPv6 with nothing after its header */
		quote = skb->gso_size ? REPLY_QUOTE : sizeof(ip);
	if (quote > REPLY_QUOTE)
		quote = REPLY_QUOTE;
	OPAQUE(quote);
	if (quote < sizeof(ip))
		return -1;
	OPAQUE(quote);
	if (quote > REPLY_QUOTE)
		return -1;
	r->len = REPLY_HEAD + quote;
	__builtin_memset(r->bytes + (r->len & 0x7ff & ~3u), 0, 4); /* the checksum's last word */
	if (bpf_skb_load_bytes(skb, ETH_SIZE, r->bytes + REPLY_HEAD, quote))
		return -1;
	__builtin_memcpy(r->bytes + sizeof(ip), &icmp, sizeof(icmp));
	icmp.checksum = reply_sum(r->bytes + sizeof(ip), sizeof(icmp) + quote,
				  ip_icmp_pseudo(src, &p->saddr, sizeof(icmp) + quote));
	__builtin_memcpy(r->bytes + sizeof(ip), &icmp, sizeof(icmp));
	reply_ip(r, src, &p->saddr, IP_ICMP, ip_answer_tos(&ip), sizeof(icmp) + quote);
	return 0;
}

/* The reset that the receiver would send if it knew of no connection: RFC 9293 section 3.10.7.1. */
static __always_inline int reply_reset(struct __sk_buff *skb, struct pkt *p, struct reply_work *r)
{
	struct tcphdr was, tcp = {};
	__u32 at = p->l4_off & IP_L4_MASK, head, bytes;
	__s64 sum;
	ip_head ip;

	if (bpf_skb_load_bytes(skb, ETH_SIZE, &ip, sizeof(ip)) ||
	    bpf_skb_load_bytes(skb, at, &was, sizeof(was)))
		return -1;
	bytes = ip_bytes(&ip) ? ip_bytes(&ip) : skb->len - ETH_SIZE;
	head = at - ETH_SIZE + was.doff * 4;
	if (was.doff < 5 || head > bytes)
		return -1;
	tcp.source = was.dest;
	tcp.dest = was.source;
	tcp.doff = 5;
	tcp.rst = 1;
	if (was.ack) {
		tcp.seq = was.ack_seq;
	} else {
		tcp.ack = 1;
		tcp.ack_seq = bpf_htonl(bpf_ntohl(was.seq) + bytes - head + was.syn + was.fin);
	}
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&p->saddr, sizeof(p->saddr),
			    bpf_htons(IPPROTO_TCP) + bpf_htons(sizeof(tcp)));
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&p->daddr, sizeof(p->daddr), sum);
	r->len = sizeof(ip) + sizeof(tcp);
	__builtin_memcpy(r->bytes + sizeof(ip), &tcp, sizeof(tcp));
	tcp.check = reply_sum(r->bytes + sizeof(ip), sizeof(tcp), sum);
	__builtin_memcpy(r->bytes + sizeof(ip), &tcp, sizeof(tcp));
	reply_ip(r, &p->daddr, &p->saddr, IPPROTO_TCP, 0, sizeof(tcp));
	return 0;
}

/* Puts the bytes in the place of the packet. */
__noinline int reply_replace(struct __sk_buff *skb)
{
	struct reply_work *r = reply_get();
	__u64 len;

	if (!r)
		return -1;
	len = r->len;
	OPAQUE(len);
	if (len < sizeof(ip_head))
		return -1;
	OPAQUE(len);
	if (len > REPLY_MOST)
		return -1;
	if (bpf_skb_change_tail(skb, ETH_SIZE + len + REPLY_ROOM, 0))
		return -1;
	if (bpf_skb_adjust_room(skb, -REPLY_ROOM, BPF_ADJ_ROOM_MAC, 0))
		return -1;
	if (bpf_skb_store_bytes(skb, ETH_SIZE, r->bytes, len, BPF_F_INVALIDATE_HASH))
		return -1;
	return bpf_skb_store_bytes(skb, 0, r->mac + 6, 6, 0) ||
			       bpf_skb_store_bytes(skb, 6, r->mac, 6, 0) ?
		       -1 :
		       0;
}

static __always_inline void reply_trace(struct __sk_buff *skb, __u32 reason, __u32 ifindex,
					const ip_addr *node, __u32 rule)
{
	if (trace_enabled) {
		skb->cb[0] = 0x200 + reason;
		skb->cb[1] = ifindex;
		skb->cb[2] = trace_addr(node);
		skb->cb[3] = rule;
	}
}

/* Sends the answer by the way that the packet in scratch.pkt came. */
static __always_inline int reply_back(struct __sk_buff *skb, struct pkt *p, struct settings *s,
				      __u32 reason, __u32 rule)
{
	__u32 ifindex = skb->ifindex;
#if WEIR_FAMILY == 4
	int ret;
#endif

	switch (p->hook) {
	case HOOK_FROM_WORKLOAD:
		reply_trace(skb, reason, ifindex, NULL, rule);
		return bpf_redirect_peer(ifindex, 0);
	case HOOK_FROM_UPLINK:
		reply_trace(skb, reason, ifindex, NULL, rule);
		forward_mark(skb, MARK_DONE);
		return bpf_redirect(ifindex, 0);
	case HOOK_FROM_TUNNEL:
#if WEIR_FAMILY == 4
		if (ifindex != s->tunnel_ifindex) {
			reply_trace(skb, reason, ifindex, &p->tunnel_src, rule);
			ret = ipip_send(skb, ifindex, p->tunnel_src.w[0], 0);
			return ret < 0 ? drop_verdict(skb, reason, rule) : ret;
		}
#endif
		reply_trace(skb, reason, 0, &p->tunnel_src, rule);
		return forward_tunnel(skb, s, &p->tunnel_src);
	}
	reply_trace(skb, reason, s->host_ifindex, NULL, rule);
	return forward_to_host(skb, s);
}

/* The packet in scratch.pkt does not fit its way. Returns 1 when it must not go on. A protocol that
 * does not fragment on the way has no choice; nor has the host's own stack, which learns by the
 * answer, nor IP in IP, whose other end puts nothing together. */
static __always_inline int reply_too_big(struct __sk_buff *skb, struct pkt *p,
					 const struct flow_value *f)
{
	struct reply_work *r = reply_get();

	if (!r || p->l4 == L4_ERROR || p->hook == HOOK_TO_WORKLOAD || f->action == ACT_PASS)
		return 0;
	r->mtu = f->mtu;
	return p->hook == HOOK_TO_UPLINK || !ip_fragments(skb) ||
	       (f->action == ACT_TUNNEL && ipip_leads(f));
}

/* Drops the packet in scratch.pkt, which is skb as it came, and answers it when the reason is one
 * that is answered. Returns what the program must return. */
__noinline int reply_refuse(struct __sk_buff *skb, __u32 reason, __u32 rule)
{
	struct settings *s = settings_get();
	struct reply_work *r = reply_get();
	struct scratch *w = scratch_get();
	struct pkt *p;
	__u32 answer;

	if (!s || !r || !w)
		return drop_packet(skb, reason, rule);
	p = &w->pkt;
	if (reason != DROP_TOO_BIG)
		r->mtu = 0;
	answer = reply_kind(r, p, reason, w->reset);
	if (answer == ANSWER_NONE || p->hook == HOOK_TO_WORKLOAD || !reply_may(skb, w, r) ||
	    (p->hook == HOOK_TO_UPLINK && !s->host_ifindex) ||
	    (p->hook == HOOK_FROM_TUNNEL && !s->tunnel_ifindex && !(s->flags & SET_IPIP)))
		return drop_packet(skb, reason, rule);
	if (!reply_take(r)) {
		reply_count(ANSWER_LIMITED);
		return drop_packet(skb, reason, rule);
	}
	drop_count(skb, reason, rule);
	/* A port is unreachable where it was looked for; everything else is reported by the node that
	 * sees it. */
	if ((answer == ANSWER_RESET ?
		     reply_reset(skb, p, r) :
		     reply_error(skb, p, r,
				 answer == ANSWER_PORT_UNREACHABLE ? &p->daddr : &s->node)) ||
	    reply_replace(skb)) {
		reply_count(ANSWER_FAILED);
		return drop_verdict(skb, reason, rule);
	}
	reply_count(answer);
	w->answered = 1;
	return reply_back(skb, p, s, reason, rule);
}

#endif
