/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* nat.h: rewriting packets. Header bytes are written in place; layer 4 checksums go through the
 * helper that knows about offloads (bpf_l4_csum_replace). */
#ifndef WEIR_NAT_H
#define WEIR_NAT_H

#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"
#include "parse.h"
#include "reasons.h"

/* The ports of an SCTP packet whose header is readable, and its checksum, which covers no
 * addresses. */
static __always_inline int nat_sctp(struct __sk_buff *skb, const struct pkt *p,
				    const struct flow_value *f)
{
	__u32 diff = (__u16)(p->key.sport ^ f->sport) |
		     ((__u32)(__u16)(p->key.dport ^ f->dport) << 16);
	struct sctp_head *sctp = (void *)(long)skb->data + (p->l4_off & IP_L4_MASK);

	if ((void *)(sctp + 1) > (void *)(long)skb->data_end)
		return DROP_REWRITE;
	if (diff && sctp->checksum && p->fragment)
		/* How far away the end of the packet is, the last fragment says. */
		return DROP_FRAGMENT_BAD;
	sctp->source = f->sport;
	sctp->dest = f->dport;
	if (diff && sctp->checksum)
		sctp->checksum ^= sctp_crc_change(diff, p->l4_len);
	return DROP_NONE;
}

/* The packet gets f's addresses and ports. Returns 0 or the reason to drop. */
static __noinline int nat_rewrite(struct __sk_buff *skb, struct pkt *p, struct flow_value *f)
{
	__u32 changed, addrs, ports, l4, flags = 0;
	ip_head *ip;
	int csum_off = -1;
	__be16 *at;

	if (!p || !f)
		return DROP_INTERNAL;
	l4 = p->l4_off & IP_L4_MASK;
	changed = csum_diff_addr(&p->key.saddr, &f->saddr) +
		  csum_diff_addr(&p->key.daddr, &f->daddr);
	addrs = changed;
	ports = csum_diff16(p->key.sport, f->sport) + csum_diff16(p->key.dport, f->dport);
	if (p->l4 == L4_TCP) {
		csum_off = offsetof(struct tcphdr, check);
	} else if (p->l4 == L4_UDP) {
		if (p->udp_csum)
			csum_off = offsetof(struct udphdr, check);
		flags = BPF_F_MARK_MANGLED_0;
	} else if (p->l4 == L4_QUERY || p->l4 == L4_ANSWER) {
		csum_off = offsetof(struct icmp_head, checksum);
		addrs = ip_icmp_diff(addrs);
		ports = p->l4 == L4_QUERY ? csum_diff16(p->key.sport, f->sport) :
					    csum_diff16(p->key.dport, f->dport);
	}
	if (WEIR_FAMILY == 6 && p->l4 == L4_NONE && p->key.proto == IP_ICMP && l4) {
		/* Covers the addresses, whatever the message is. */
		csum_off = offsetof(struct icmp_head, checksum);
		ports = 0;
	}
	if (csum_off < 0) {
		ip_unsummed(skb, csum_fold(changed));
	} else {
		addrs = csum_fold(addrs);
		ports = csum_fold(ports);
		if (addrs && addrs != 0xffff && ip_csum_pseudo(skb, l4 + csum_off, addrs, flags))
			return DROP_REWRITE;
		if (ports && ports != 0xffff &&
		    bpf_l4_csum_replace(skb, l4 + csum_off, 0, ports, flags))
			return DROP_REWRITE;
	}
	if (cursor_pull_tc(skb, p->l4 == L4_NONE ?
					ETH_SIZE + sizeof(*ip) :
					l4 + (p->l4 == L4_SCTP ? sizeof(struct sctp_head) : 8)))
		return DROP_REWRITE;
	ip = (void *)(long)skb->data + ETH_SIZE;
	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return DROP_REWRITE;
	ip_readdress(ip, &f->saddr, &f->daddr, changed);
	if (p->l4 == L4_NONE)
		return DROP_NONE;
	at = (void *)(long)skb->data + l4;
	if ((void *)at + 8 > (void *)(long)skb->data_end)
		return DROP_REWRITE;
	if (p->l4 == L4_TCP || p->l4 == L4_UDP) {
		at[0] = f->sport;
		at[1] = f->dport;
	} else if (p->l4 == L4_SCTP) {
		return nat_sctp(skb, p, f);
	} else if (p->l4 == L4_QUERY) {
		at[2] = f->sport;
	} else if (p->l4 == L4_ANSWER) {
		at[2] = f->dport;
	}
	return DROP_NONE;
}

/* An ICMP error whose quoted packet belongs to the flow entry f (of the direction in which the
 * error travels). */
static __noinline int nat_rewrite_error(struct __sk_buff *skb, struct pkt *p, struct flow_value *f)
{
	__u32 off, sum, quoted_l4, diff, outer, query;
	__be16 ports[4] = {};
	ip_addr saddr;
	ip_head ip;

	if (!p || !f)
		return DROP_INTERNAL;
	sum = (p->l4_off & IP_L4_MASK) + offsetof(struct icmp_head, checksum);
	off = p->quoted_off & PARSE_QUOTED_MASK;
	quoted_l4 = p->quoted_l4 & PARSE_QUOTED_MASK;
	if (bpf_skb_load_bytes(skb, off, &ip, sizeof(ip)) ||
	    (parse_tells(p->key.proto) && bpf_skb_load_bytes(skb, quoted_l4, ports, sizeof(ports))))
		return DROP_REWRITE;

	/* Inside: the quoted packet went the other way, so its source is what f makes of the
	 * destination. */
	diff = csum_diff_addr(&p->key.daddr, &f->daddr) + csum_diff_addr(&p->key.saddr, &f->saddr);
	ip_readdress(&ip, &f->daddr, &f->saddr, diff);
	if (bpf_skb_store_bytes(skb, off, &ip, sizeof(ip), 0))
		return DROP_REWRITE;
	query = p->key.proto == IP_ICMP ? parse_query(((__u8 *)ports)[0], ((__u8 *)ports)[1]) : 0;
	if (query) {
		__be16 id = ((__u8 *)ports)[0] == query ? f->dport : f->sport;

		/* The quoted ICMP checksum is mended for what it covers: together they add nothing. */
		ports[1] = (__u16)~csum_fold((__u16)~ports[1] +
					     csum_fold(csum_diff16(ports[2], id)) +
					     csum_fold(ip_icmp_diff(diff)));
		ports[2] = id;
		diff = 0;
	} else {
		diff = ip_quoted_diff(diff);
		if (p->key.proto == IPPROTO_TCP || p->key.proto == IPPROTO_UDP ||
		    p->key.proto == IPPROTO_SCTP) {
			diff += csum_diff16(ports[0], f->dport) + csum_diff16(ports[1], f->sport);
			ports[0] = f->dport;
			ports[1] = f->sport;
		}
	}
	if (parse_tells(p->key.proto) &&
	    bpf_skb_store_bytes(skb, quoted_l4, ports, sizeof(ports), 0))
		return DROP_REWRITE;
	diff = csum_fold(diff);
	if (diff && diff != 0xffff && bpf_l4_csum_replace(skb, sum, 0, diff, 0))
		return DROP_REWRITE;

	/* Outside: whoever reports stays, unless it is the other end itself. */
	saddr = addr_same(&p->saddr, &p->key.saddr) ? f->saddr : p->saddr;
	outer = csum_diff_addr(&p->saddr, &saddr) + csum_diff_addr(&p->daddr, &f->daddr);
	diff = csum_fold(ip_icmp_diff(outer));
	if (diff && diff != 0xffff && ip_csum_pseudo(skb, sum, diff, 0))
		return DROP_REWRITE;
	if (bpf_skb_load_bytes(skb, ETH_SIZE, &ip, sizeof(ip)))
		return DROP_REWRITE;
	ip_readdress(&ip, &saddr, &f->daddr, outer);
	return bpf_skb_store_bytes(skb, ETH_SIZE, &ip, sizeof(ip), 0) ? DROP_REWRITE : DROP_NONE;
}

#endif
