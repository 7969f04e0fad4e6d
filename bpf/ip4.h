/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* ip4.h: what is particular to IPv4 (RFC 791, 792) in reading, changing and making packets. ip6.h
 * has the same functions for IPv6; ip.h chooses. */
#ifndef WEIR_IP4_H
#define WEIR_IP4_H

#include <linux/ip.h>

typedef struct iphdr ip_head;

#define IP_ETHERTYPE ETH_P_IP
#define IP_ICMP IPPROTO_ICMP
#define IP_ECHO_REPLY 0
#define IP_ECHO 8
#define IP_L4_MASK 0x7fu /* holds every offset of an upper layer's header in a frame */
#define IP_LEAST_MTU 576u /* an ICMP error is not longer; RFC 1812 section 4.3.2.3 */

/* ICMP errors that Weir makes. <linux/icmp.h> drags in the C library's headers. */
#define IP_UNREACHABLE 3
#define IP_UNREACHABLE_PORT 3
#define IP_UNREACHABLE_HOST 1
#define IP_TIME_EXCEEDED 11
#define IP_TOO_BIG 3 /* RFC 1191 */
#define IP_TOO_BIG_CODE 4

/* Tunnels between nodes: flags of bpf_skb_get_tunnel_key and bpf_skb_set_tunnel_key. */
#define IP_TUNNEL_GET 0
#define IP_TUNNEL_SET BPF_F_ZERO_CSUM_TX

static __always_inline int ip_is_error(__u8 type)
{
	/* Unreachable, time exceeded, parameter problem. */
	return type == 3 || type == 11 || type == 12;
}

/* Queries by an identifier that answers repeat (RFC 792, 950): echo, timestamp, information,
 * address mask. The number of an answer is the next one, of an echo's 0. */
#define IP_QUERIES (1u << IP_ECHO | 1u << 13 | 1u << 15 | 1u << 17)
#define IP_ANSWERS (1u << IP_ECHO_REPLY | 1u << 14 | 1u << 16 | 1u << 18)

/* The type of the query that a message of this type is, or answers; 0 = neither. */
static __always_inline __u32 ip_query(__u8 type)
{
	__u32 bit = type < 32 ? 1u << type : 0;

	if (bit & IP_QUERIES)
		return type;
	if (bit & IP_ANSWERS)
		return type == IP_ECHO_REPLY ? IP_ECHO : type - 1;
	return 0;
}

/* The type of what answers a query. */
static __always_inline __u32 ip_answer(__u32 query)
{
	return query == IP_ECHO ? IP_ECHO_REPLY : query + 1;
}

/* Reads the header of the frame: addresses, protocol, hops. The cursor comes to stand at the upper
 * layer. */
static __always_inline int ip_parse(struct cursor *c, struct pkt *p)
{
	struct ethhdr *eth;
	struct iphdr *ip;
	__u32 len;

	if (cursor_pull(c, ETH_SIZE + sizeof(*ip)))
		return PARSED_MALFORMED;
	eth = cursor_data(c);
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > cursor_data_end(c))
		return PARSED_MALFORMED;
	len = bpf_ntohs(ip->tot_len);
	if (!len && cursor_is_merged(c)) /* more than 64 KiB in one buffer */
		len = 0xffff;
	else if (ETH_SIZE + len > cursor_frame(c))
		return PARSED_MALFORMED;
	if (ip->version != 4 || ip->ihl < 5 || len < ip->ihl * 4)
		return PARSED_MALFORMED;
	p->saddr.w[0] = p->key.saddr.w[0] = ip->saddr;
	p->daddr.w[0] = p->key.daddr.w[0] = ip->daddr;
	p->key.proto = ip->protocol;
	p->ttl = ip->ttl;
	if ((ip->daddr & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) || ip->daddr == 0xffffffff)
		return PARSED_CAST;
	if (ip->frag_off & bpf_htons(0x3fff)) {
		p->fragment = 1;
		if (ip->frag_off & bpf_htons(0x1fff))
			return PARSED_FRAGMENT;
	}
	c->off = ETH_SIZE + ip->ihl * 4;
	c->len = len - ip->ihl * 4;
	return PARSED_OK;
}

/* Is the packet about groups that somebody listens to (IGMP: RFC 2236, 3376)? */
static __always_inline int ip_is_listeners(const struct pkt *p)
{
	return p->key.proto == IPPROTO_IGMP;
}

/* Is the packet, which has flow keys, a message of ICMP that concerns the link alone? None is. */
static __always_inline int ip_is_link(const struct pkt *p)
{
	return 0;
}

/* Where the fragment lies that ip_parse found. 0 on success. */
static __always_inline int ip_fragment(struct __sk_buff *skb, const struct pkt *p,
				       struct frag_info *g)
{
	struct iphdr ip;
	__u32 off;

	if (bpf_skb_load_bytes(skb, ETH_SIZE, &ip, sizeof(ip)))
		return -1;
	off = bpf_ntohs(ip.frag_off);
	g->id = ip.id;
	g->begin = (off & 0x1fff) * 8;
	g->end = g->begin + bpf_ntohs(ip.tot_len) - ip.ihl * 4;
	g->frame = ETH_SIZE + bpf_ntohs(ip.tot_len);
	g->more = (off & 0x2000) != 0;
	return 0;
}

/* Reads the header at the cursor, which an ICMP error quotes that ends at `end`. The cursor comes
 * to stand at its upper layer. 0 on success. */
static __always_inline int ip_quoted(struct cursor *c, __u32 end, ip_addr *src, ip_addr *dst,
				     __u8 *proto)
{
	struct {
		struct iphdr ip;
	} q;

	if (cursor_load(c, c->off, &q.ip, sizeof(q.ip)) || q.ip.version != 4 || q.ip.ihl < 5)
		return -1;
	/* Only first fragments are reported (RFC 1122 section 3.2.2). */
	if (q.ip.frag_off & bpf_htons(0x1fff))
		return -1;
	src->w[0] = q.ip.saddr;
	dst->w[0] = q.ip.daddr;
	*proto = q.ip.protocol;
	c->off += q.ip.ihl * 4;
	return 0;
}

static __always_inline void ip_csum_add(ip_head *ip, __u32 diff)
{
	ip->check = (__u16)~csum_fold((__u16)~ip->check + csum_fold(diff));
}

/* One hop less, of more than one. */
static __always_inline void ip_hop(struct __sk_buff *skb, ip_head *ip)
{
	__u32 check = ip->check;

	/* RFC 1141: the TTL is the high byte of its word */
	check += bpf_htons(0x0100);
	ip->check = (__u16)(check + (check >= 0xffff));
	ip->ttl--;
}

/* New addresses; diff is what changes in the sum of a header that has a checksum. */
static __always_inline void ip_readdress(ip_head *ip, const ip_addr *src, const ip_addr *dst,
					 __u32 diff)
{
	ip_csum_add(ip, diff);
	ip->saddr = src->w[0];
	ip->daddr = dst->w[0];
}

/* The upper layer's checksum at off covers addresses that change by diff, folded. */
static __always_inline int ip_csum_pseudo(struct __sk_buff *skb, __u32 off, __u32 diff, __u64 flags)
{
	return bpf_l4_csum_replace(skb, off, 0, diff, BPF_F_PSEUDO_HDR | flags);
}

/* Addresses changed by diff, folded, in a packet whose upper layer covers none: the header's
 * checksum makes up for it. */
static __always_inline void ip_unsummed(struct __sk_buff *skb, __u32 diff) {}

/* What the ICMP checksum changes by where addresses change by diff: it does not cover them. */
static __always_inline __u32 ip_icmp_diff(__u32 diff)
{
	return 0;
}

/* What an ICMP error's checksum changes by where the addresses of the header that it quotes change
 * by diff: that header's own checksum is mended, so that its words together add nothing. */
static __always_inline __u32 ip_quoted_diff(__u32 diff)
{
	return 0;
}

/* The outer source of a packet that came out of the tunnel; the helper gives IPv4 in host byte
 * order. */
static __always_inline void ip_outer_get(ip_addr *src, const struct bpf_tunnel_key *key)
{
	src->w[0] = bpf_htonl(key->remote_ipv4);
}

/* The kernel's routes choose the source. */
static __always_inline void ip_outer_set(struct bpf_tunnel_key *key, const ip_addr *node,
					 const ip_addr *own)
{
	(void)own;
	key->remote_ipv4 = bpf_ntohl(node->w[0]);
}

/* Can the address be that of one host beyond this one? */
static __always_inline int ip_somebody(const ip_addr *a)
{
	__u32 v = bpf_ntohl(a->w[0]);

	return v >> 24 != 0 && v >> 24 != 127 && v < 0xe0000000;
}

/* Is it an address that a machine has for itself alone (RFC 1122, section 3.2.1.3)? */
static __always_inline int ip_is_loopback(const ip_addr *a)
{
	return (a->w[0] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

/* Bytes of the packet whose header this is; 0 = more than fit. */
static __always_inline __u32 ip_bytes(const ip_head *ip)
{
	return bpf_ntohs(ip->tot_len);
}

/* The type of service of an answer to the packet: its own, with precedence 6 (RFC 1812 section
 * 4.3.2.5). */
static __always_inline __u8 ip_answer_tos(const ip_head *ip)
{
	return (ip->tos & 0x1e) | 0xc0;
}

/* A header for `bytes` of upper layer; the checksum is left 0. */
static __always_inline void ip_make(ip_head *ip, const ip_addr *src, const ip_addr *dst, __u8 proto,
				    __u8 tos, __u32 bytes)
{
	struct iphdr made = {
		.version = 4,
		.ihl = 5,
		.tos = tos,
		.tot_len = bpf_htons(sizeof(made) + bytes),
		.frag_off = bpf_htons(0x4000),
		.ttl = 64,
		.protocol = proto,
	};

	made.saddr = src->w[0];
	made.daddr = dst->w[0];
	*ip = made;
}

static __always_inline void ip_seal(ip_head *ip, __u16 sum)
{
	ip->check = sum;
}

/* The pseudo header's part of the checksum of an ICMP message. */
static __always_inline __u32 ip_icmp_pseudo(const ip_addr *src, const ip_addr *dst, __u32 bytes)
{
	return 0;
}

/* How much of the packet must be in the first fragment, and not be written over by a later one. */
static __always_inline __u32 ip_frag_head(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP: return sizeof(struct tcphdr);
	case IPPROTO_SCTP: return sizeof(struct sctp_head);
	}
	return 8;
}

/* The protocol of the fragment, if it is one that all fragments of a packet tell. */
static __always_inline __u8 ip_frag_proto(__u8 proto)
{
	return proto;
}

/* May the packet be fragmented on the way? */
static __always_inline int ip_fragments(struct __sk_buff *skb)
{
	__be16 frag_off;

	return !bpf_skb_load_bytes(skb, ETH_SIZE + offsetof(struct iphdr, frag_off), &frag_off,
				   sizeof(frag_off)) &&
	       !(frag_off & bpf_htons(0x4000));
}

#endif
