/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* nat.h: rewriting packets. Header bytes are written in place; layer 4 checksums go through the helper that knows
 * about offloads (bpf_l4_csum_replace). */
#ifndef WEIR_NAT_H
#define WEIR_NAT_H

#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"
#include "parse.h"
#include "reasons.h"

static __always_inline __u16 nat_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)sum;
}

/* One's complement difference of two words (RFC 1624), to be added to a sum. */
static __always_inline __u32 nat_diff32(__u32 from, __u32 to)
{
	return (~from & 0xffff) + (~from >> 16) + (to & 0xffff) + (to >> 16);
}

static __always_inline __u32 nat_diff16(__u16 from, __u16 to)
{
	return (__u16)~from + (__u32)to;
}

static __always_inline void nat_ip_csum_add(struct iphdr *ip, __u32 diff)
{
	ip->check = (__u16)~nat_fold((__u16)~ip->check + nat_fold(diff));
}

/* The ports of an SCTP packet whose header is readable, and its checksum, which covers no addresses. */
static __always_inline int nat_sctp(struct __sk_buff *skb, const struct pkt *p, const struct flow_value *f)
{
	__u32 diff = (__u16)(p->key.sport ^ f->sport) | (__u32)(__u16)(p->key.dport ^ f->dport) << 16;
	struct sctp_head *sctp = (void *)(long)skb->data + (p->l4_off & 0x7f);

	if ((void *)(sctp + 1) > (void *)(long)skb->data_end)
		return DROP_REWRITE;
	if (diff && sctp->checksum && p->fragment)
		return DROP_FRAGMENT_BAD; /* how far away the end of the packet is, the last fragment says */
	sctp->source = f->sport;
	sctp->dest = f->dport;
	if (diff && sctp->checksum)
		sctp->checksum ^= sctp_crc_change(diff, p->l4_len);
	return DROP_NONE;
}

/* The other end of the tunnel. */
static __always_inline void nat_outer(struct bpf_tunnel_key *key, const ip_addr *node)
{
	key->remote_ipv4 = bpf_ntohl(node->w[0]);
}

/* The packet gets f's addresses and ports. Returns 0 or the reason to drop. */
static __noinline int nat_rewrite(struct __sk_buff *skb, struct pkt *p, struct flow_value *f)
{
	__u32 addrs, ports, l4, flags = 0;
	struct iphdr *ip;
	int csum_off = -1;
	__be16 *at;

	if (!p || !f)
		return DROP_REWRITE;
	l4 = p->l4_off & 0x7f;
	addrs = nat_diff32(p->key.saddr.w[0], f->saddr.w[0]) + nat_diff32(p->key.daddr.w[0], f->daddr.w[0]);
	ports = nat_diff16(p->key.sport, f->sport) + nat_diff16(p->key.dport, f->dport);
	if (p->l4 == L4_TCP) {
		csum_off = offsetof(struct tcphdr, check);
	} else if (p->l4 == L4_UDP) {
		if (p->udp_csum)
			csum_off = offsetof(struct udphdr, check);
		flags = BPF_F_MARK_MANGLED_0;
	} else if (p->l4 == L4_ECHO_REQUEST || p->l4 == L4_ECHO_REPLY) {
		csum_off = offsetof(struct icmp_head, checksum);
		addrs = 0; /* ICMP has no pseudo header */
	}
	if (csum_off >= 0) {
		addrs = nat_fold(addrs);
		ports = nat_fold(ports);
		if (addrs && addrs != 0xffff &&
		    bpf_l4_csum_replace(skb, l4 + csum_off, 0, addrs, BPF_F_PSEUDO_HDR | flags))
			return DROP_REWRITE;
		if (ports && ports != 0xffff && bpf_l4_csum_replace(skb, l4 + csum_off, 0, ports, flags))
			return DROP_REWRITE;
	}
	if (parse_pull(skb, p->l4 == L4_NONE ? ETH_SIZE + sizeof(*ip) :
			    l4 + (p->l4 == L4_SCTP ? sizeof(struct sctp_head) : 8)))
		return DROP_REWRITE;
	ip = (void *)(long)skb->data + ETH_SIZE;
	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return DROP_REWRITE;
	nat_ip_csum_add(ip, nat_diff32(p->key.saddr.w[0], f->saddr.w[0]) + nat_diff32(p->key.daddr.w[0], f->daddr.w[0]));
	ip->saddr = f->saddr.w[0];
	ip->daddr = f->daddr.w[0];
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
	} else if (p->l4 == L4_ECHO_REQUEST) {
		at[2] = f->sport;
	} else if (p->l4 == L4_ECHO_REPLY) {
		at[2] = f->dport;
	}
	return DROP_NONE;
}

/* An ICMP error whose quoted packet belongs to the flow entry f (of the direction in which the error travels). */
static __noinline int nat_rewrite_error(struct __sk_buff *skb, struct pkt *p, struct flow_value *f)
{
	__u32 off, l4, quoted_l4, diff;
	struct iphdr ip, in;
	__be16 ports[4];
	__be32 saddr;

	if (!p || !f)
		return DROP_REWRITE;
	l4 = p->l4_off & 0x7f;
	off = p->quoted_off & 0xff;
	if (bpf_skb_load_bytes(skb, ETH_SIZE, &ip, sizeof(ip)) || bpf_skb_load_bytes(skb, off, &in, sizeof(in)))
		return DROP_REWRITE;
	quoted_l4 = off + (in.ihl & 0xf) * 4;
	if (bpf_skb_load_bytes(skb, quoted_l4, ports, sizeof(ports)))
		return DROP_REWRITE;

	/* Inside: the quoted packet went the other way, so its source is what f makes of the destination. The
	 * inner header's checksum is mended, so its words together add nothing to the ICMP checksum. */
	nat_ip_csum_add(&in, nat_diff32(in.saddr, f->daddr.w[0]) + nat_diff32(in.daddr, f->saddr.w[0]));
	in.saddr = f->daddr.w[0];
	in.daddr = f->saddr.w[0];
	diff = 0;
	if (p->key.proto == IPPROTO_TCP || p->key.proto == IPPROTO_UDP || p->key.proto == IPPROTO_SCTP) {
		diff = nat_diff16(ports[0], f->dport) + nat_diff16(ports[1], f->sport);
		ports[0] = f->dport;
		ports[1] = f->sport;
	} else if (p->key.proto == IPPROTO_ICMP &&
		   (((__u8 *)ports)[0] == ICMP_ECHO || ((__u8 *)ports)[0] == ICMP_ECHOREPLY)) {
		__be16 id = ((__u8 *)ports)[0] == ICMP_ECHO ? f->dport : f->sport;

		/* the identifier, and the quoted ICMP checksum that covers it: together they add nothing */
		ports[1] = (__u16)~nat_fold((__u16)~ports[1] + nat_fold(nat_diff16(ports[2], id)));
		ports[2] = id;
	}
	diff = nat_fold(diff);
	if (diff && diff != 0xffff &&
	    bpf_l4_csum_replace(skb, l4 + offsetof(struct icmp_head, checksum), 0, diff, 0))
		return DROP_REWRITE;
	if (bpf_skb_store_bytes(skb, off, &in, sizeof(in), 0) ||
	    bpf_skb_store_bytes(skb, quoted_l4, ports, sizeof(ports), 0))
		return DROP_REWRITE;

	/* Outside: whoever reports stays, unless it is the other end itself. */
	saddr = ip.saddr == p->key.saddr.w[0] ? f->saddr.w[0] : ip.saddr;
	nat_ip_csum_add(&ip, nat_diff32(ip.saddr, saddr) + nat_diff32(ip.daddr, f->daddr.w[0]));
	ip.saddr = saddr;
	ip.daddr = f->daddr.w[0];
	return bpf_skb_store_bytes(skb, ETH_SIZE, &ip, sizeof(ip), 0) ? DROP_REWRITE : DROP_NONE;
}

#endif
