/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* ip6.h: what is particular to IPv6 (RFC 8200, 4443, 4861) in reading, changing and making packets.
 * The functions are those of ip4.h. */
#ifndef WEIR_IP6_H
#define WEIR_IP6_H

#include <stddef.h>
#include <linux/ipv6.h>

typedef struct ipv6hdr ip_head;

#define IP_ETHERTYPE ETH_P_IPV6
#define IP_ICMP IPPROTO_ICMPV6
#define IP_ECHO_REPLY 129
#define IP_ECHO 128
#define IP_L4_MASK 0x1ffu
#define IP_LEAST_MTU 1280u

#define IP_UNREACHABLE 1
#define IP_UNREACHABLE_PORT 4
#define IP_UNREACHABLE_HOST 3 /* address */
#define IP_TIME_EXCEEDED 3
#define IP_TOO_BIG 2
#define IP_TOO_BIG_CODE 0

#define IP_TUNNEL_GET BPF_F_TUNINFO_IPV6
/* With checksum: without one the other end takes nothing (RFC 6935). */
#define IP_TUNNEL_SET BPF_F_TUNINFO_IPV6

#define IP6_HEADERS 6 /* extension headers of a packet, at most */
#define IP6_CHAIN 456 /* bytes of them; IP_L4_MASK and PARSE_QUOTED_MASK hold what follows */

#define IP6_HOP_BY_HOP 0
#define IP6_ROUTING 43
#define IP6_FRAGMENT 44
#define IP6_DESTINATION 60

static __always_inline int ip_is_error(__u8 type)
{
	/* Unreachable, packet too big, time exceeded, parameter problem. */
	return type >= 1 && type <= 4;
}

/* The type of the query that a message of this type is, or answers; 0 = neither. Information
 * queries (RFC 4620) have no identifier. */
static __always_inline __u32 ip_query(__u8 type)
{
	return type == IP_ECHO || type == IP_ECHO_REPLY ? IP_ECHO : 0;
}

/* The type of what answers a query. */
static __always_inline __u32 ip_answer(__u32 query)
{
	return query + 1;
}

/* A routing header with segments left, or of type 0 (RFC 5095), says that the packet goes on to
 * somebody else. Behind one without, the stack unpacks a packet (RFC 8754, section 4.3.1.2). */
static __always_inline int ip6_leads_on(__u8 next, __u8 type, __u8 left)
{
	return !type || left || next == IPPROTO_IPIP || next == IPPROTO_IPV6;
}

/* Moves the cursor to the upper layer of a packet that ends at `end`: on entry it stands at what
 * follows the fixed header, and that is of protocol *proto. A chain that is cut or too long, a
 * routing header that leads on, and a second fragment header hide what would have to be
 * evaluated. */
static __always_inline int ip6_upper(struct cursor *c, __u32 end, __u8 *proto, __u16 *frag_at)
{
	__u32 start = c->off;
	int fragments = 0;
	struct {
		__u8 next;
		__u8 len;
		__u8 bytes[6];
	} head;

/* Linux 6.1 takes no loop whose end falls through to its begin, and who lays it out is the
 * compiler. */
#pragma clang loop unroll(full)
	for (int i = 0; i <= IP6_HEADERS; i++) {
		if (*proto != IP6_HOP_BY_HOP && *proto != IP6_ROUTING && *proto != IP6_FRAGMENT &&
		    *proto != IP6_DESTINATION)
			return c->off - start <= IP6_CHAIN && c->off <= end ? PARSED_OK :
									      PARSED_HIDDEN;
		if (i == IP6_HEADERS || c->off + sizeof(head) > end ||
		    cursor_load(c, c->off, &head, sizeof(head)))
			return PARSED_HIDDEN;
		if (*proto == IP6_ROUTING && ip6_leads_on(head.next, head.bytes[0], head.bytes[1]))
			return PARSED_HIDDEN;
		if (*proto == IP6_FRAGMENT) {
			if (c->is_xdp)
				return PARSED_FRAGMENT;
			if (fragments++)
				return PARSED_HIDDEN;
			/* Else it is all of a packet (RFC 6946). */
			if (head.bytes[0] || (head.bytes[1] & 0xf9))
				*frag_at = c->off;
			if (head.bytes[0] || (head.bytes[1] & 0xf8)) {
				*proto = head.next;
				return PARSED_FRAGMENT;
			}
			head.len = 0;
		}
		c->off += (head.len + 1) * 8;
		*proto = head.next;
	}
	return PARSED_HIDDEN;
}

/* Neighbour discovery, and reports of multicast listeners. What a router alone says is not taken
 * from just anybody: PARSED_CAST. Discovery counts only on the link itself (hop limit 255); what a
 * pod could send beyond is evaluated. */
static __always_inline int ip6_link(const struct cursor *c, const struct pkt *p, int cast)
{
	__u8 type;

	if (p->key.proto != IPPROTO_ICMPV6 || cursor_load(c, c->off, &type, 1))
		return PARSED_OK;
	if (type >= 133 && type <= 137 && p->ttl == 255)
		return type == 134 || type == 137            ? PARSED_CAST :
		       cast || p->hook != HOOK_FROM_WORKLOAD ? PARSED_LINK :
							       PARSED_OK;
	if (cast && ((type >= 130 && type <= 132) || type == 143))
		return PARSED_LINK;
	return PARSED_OK;
}

/* Is the packet, which has flow keys, about groups that somebody listens to (RFC 2710, 3810)? */
static __always_inline int ip_is_listeners(const struct pkt *p)
{
	__u8 type = bpf_ntohs(p->key.sport) >> 8;

	return p->l4 == L4_NONE && p->key.proto == IPPROTO_ICMPV6 &&
	       ((type >= 130 && type <= 132) || type == 143);
}

/* Multicast (which is no source either, RFC 4291 section 2.7) and link-local addresses. */
static __always_inline int ip6_is_cast(const ip_addr *a)
{
	return (a->w[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000) ||
	       (a->w[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

static __always_inline int ip_parse(struct cursor *c, struct pkt *p)
{
	struct ipv6hdr *ip;
	struct ethhdr *eth;
	__u32 end;
	int ret, cast, link;

	if (cursor_pull(c, ETH_SIZE + sizeof(*ip)))
		return PARSED_MALFORMED;
	eth = cursor_data(c);
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > cursor_data_end(c))
		return PARSED_MALFORMED;
	c->off = ETH_SIZE + sizeof(*ip);
	end = c->off + bpf_ntohs(ip->payload_len);
	if (!ip->payload_len && cursor_is_merged(c))
		end = 0xffff;
	else if (end > cursor_frame(c) || (c->is_xdp && !ip->payload_len))
		return PARSED_MALFORMED;
	if (ip->version != 6)
		return PARSED_MALFORMED;
	addr_load(&p->saddr, &ip->saddr);
	addr_load(&p->daddr, &ip->daddr);
	p->key.saddr = p->saddr;
	p->key.daddr = p->daddr;
	p->key.proto = ip->nexthdr;
	p->ttl = ip->hop_limit;
	ret = ip6_upper(c, end, &p->key.proto, &p->frag_at);
	p->fragment = p->frag_at != 0;
	p->hidden = ret == PARSED_HIDDEN;
	cast = ip6_is_cast(&p->daddr) || ip6_is_cast(&p->saddr);
	/* RFC 6980: none of these is a fragment. */
	if (!c->is_xdp && ret == PARSED_OK && !p->fragment) {
		link = ip6_link(c, p, cast);
		if (link != PARSED_OK)
			return link;
	}
	if (cast) {
		p->fragment = 0;
		return p->hidden && (p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL) ?
			       PARSED_HIDDEN :
			       PARSED_CAST;
	}
	if (ret != PARSED_OK)
		return ret;
	c->len = end - c->off;
	return PARSED_OK;
}

/* Neighbour discovery and reports of listeners. */
static __always_inline int ip_is_link(const struct pkt *p)
{
	__u8 type = bpf_ntohs(p->key.sport) >> 8;

	return p->l4 == L4_NONE && p->key.proto == IPPROTO_ICMPV6 && type >= 130 && type <= 143;
}

static __always_inline int ip_fragment(struct __sk_buff *skb, const struct pkt *p,
				       struct frag_info *g)
{
	struct {
		__u8 next;
		__u8 reserved;
		__be16 off;
		__u32 id;
	} head;
	__be16 payload;
	__u32 end;

	if (bpf_skb_load_bytes(skb, p->frag_at, &head, sizeof(head)) ||
	    bpf_skb_load_bytes(skb, ETH_SIZE + offsetof(struct ipv6hdr, payload_len), &payload,
			       sizeof(payload)))
		return -1;
	end = ETH_SIZE + sizeof(struct ipv6hdr) + bpf_ntohs(payload);
	if (end < p->frag_at + sizeof(head))
		return -1;
	g->id = head.id;
	g->begin = bpf_ntohs(head.off) & 0xfff8;
	g->end = g->begin + end - p->frag_at - sizeof(head);
	g->frame = end;
	g->more = bpf_ntohs(head.off) & 1;
	return 0;
}

static __always_inline int ip_quoted(struct cursor *c, __u32 end, ip_addr *src, ip_addr *dst,
				     __u8 *proto)
{
	struct {
		struct ipv6hdr ip;
	} q;
	__u16 frag_at;

	if (cursor_load(c, c->off, &q.ip, sizeof(q.ip)) || q.ip.version != 6)
		return -1;
	addr_load(src, &q.ip.saddr);
	addr_load(dst, &q.ip.daddr);
	*proto = q.ip.nexthdr;
	c->off += sizeof(q.ip);
	return ip6_upper(c, end, proto, &frag_at) == PARSED_OK ? 0 : -1;
}

/* One hop less, of more than one. No checksum of the header makes up for it in what a device
 * summed. */
static __always_inline void ip_hop(struct __sk_buff *skb, ip_head *ip)
{
	ip->hop_limit--;
	bpf_csum_update(skb, (__u16)~bpf_htons(1));
}

static __always_inline void ip_readdress(ip_head *ip, const ip_addr *src, const ip_addr *dst,
					 __u32 diff)
{
	addr_store(&ip->saddr, src);
	addr_store(&ip->daddr, dst);
}

static __always_inline int ip_csum_pseudo(struct __sk_buff *skb, __u32 off, __u32 diff, __u64 flags)
{
	if (bpf_l4_csum_replace(skb, off, 0, diff, BPF_F_PSEUDO_HDR | flags))
		return -1;
	/* The helper takes for granted that a header's checksum changes too, as IPv4's does, and
	 * corrects the sum over the packet that a device may have given. Here addresses and checksum
	 * together leave that as it was. */
	bpf_csum_update(skb, diff);
	return 0;
}

/* Nothing in the packet makes up for addresses that change by diff, folded: so what a device summed
 * is corrected. */
static __always_inline void ip_unsummed(struct __sk_buff *skb, __u32 diff)
{
	bpf_csum_update(skb, diff);
}

static __always_inline __u32 ip_icmp_diff(__u32 diff)
{
	return diff;
}

static __always_inline __u32 ip_quoted_diff(__u32 diff)
{
	return diff;
}

static __always_inline void ip_outer_get(ip_addr *src, const struct bpf_tunnel_key *key)
{
	addr_load(src, key->remote_ipv6);
}

/* An interface has several addresses, and the kernel may prefer one that other nodes do not
 * know. */
static __always_inline void ip_outer_set(struct bpf_tunnel_key *key, const ip_addr *node,
					 const ip_addr *own)
{
	addr_store(key->remote_ipv6, node);
	addr_store(key->local_ipv6, own);
}

static __always_inline int ip_somebody(const ip_addr *a)
{
	return !(a->w[0] == 0 && a->w[1] == 0 && a->w[2] == 0) && !ip6_is_cast(a);
}

static __always_inline int ip_is_loopback(const ip_addr *a)
{
	return a->w[0] == 0 && a->w[1] == 0 && a->w[2] == 0 && a->w[3] == bpf_htonl(1);
}

static __always_inline __u32 ip_bytes(const ip_head *ip)
{
	return ip->payload_len ? sizeof(*ip) + bpf_ntohs(ip->payload_len) : 0;
}

static __always_inline __u8 ip_answer_tos(const ip_head *ip)
{
	return 0;
}

static __always_inline void ip_make(ip_head *ip, const ip_addr *src, const ip_addr *dst, __u8 proto,
				    __u8 tos, __u32 bytes)
{
	struct ipv6hdr made = {
		.version = 6, .payload_len = bpf_htons(bytes), .nexthdr = proto, .hop_limit = 64
	};

	addr_store(&made.saddr, src);
	addr_store(&made.daddr, dst);
	*ip = made;
}

static __always_inline void ip_seal(ip_head *ip, __u16 sum) {}

static __always_inline __u32 ip_icmp_pseudo(const ip_addr *src, const ip_addr *dst, __u32 bytes)
{
	__u32 sum = bpf_htons(bytes) + bpf_htons(IPPROTO_ICMPV6);

#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		sum += (src->w[i] & 0xffff) + (src->w[i] >> 16) + (dst->w[i] & 0xffff) +
		       (dst->w[i] >> 16);
	return sum;
}

/* How much of the packet a later fragment surely does not hold. It does not tell the protocol, and
 * the first one may end early. */
static __always_inline __u32 ip_frag_head(__u8 proto)
{
	return 0;
}

/* The protocol of the fragment, if it is one that all fragments of a packet tell. Only the first
 * does (RFC 8200 section 4.5). */
static __always_inline __u8 ip_frag_proto(__u8 proto)
{
	return 0;
}

/* May the packet be fragmented on the way? Only its source fragments (RFC 8200 section 4.5). */
static __always_inline int ip_fragments(struct __sk_buff *skb)
{
	return 0;
}

#endif
