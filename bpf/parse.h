/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* parse.h: a frame into a flow key. */
#ifndef WEIR_PARSE_H
#define WEIR_PARSE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "abi.h"
#include "csum.h"
#include "cursor.h"
#include "sctp.h"

enum hook {
	HOOK_FROM_WORKLOAD,
	HOOK_TO_WORKLOAD,
	HOOK_FROM_UPLINK,
	HOOK_TO_UPLINK,
	HOOK_FROM_TUNNEL,
	/* a program of its own at HOOK_TO_UPLINK; no packet is said to be here */
	HOOK_TO_UPLINK_EACH,
};

enum parsed {
	PARSED_OK,
	PARSED_OTHER, /* not of this family */
	PARSED_LINK, /* ARP, neighbour discovery */
	PARSED_MALFORMED,
	PARSED_FRAGMENT,
	/* what it carries, or where to, stands behind headers that are not looked through */
	PARSED_HIDDEN,
	PARSED_CAST, /* multicast, broadcast, link-local */
};

/* What host endpoints say of a packet by itself: see untracked.h. */
enum untracked {
	UNTRACKED_UNKNOWN = 0,
	UNTRACKED_NONE = 1, /* no rule is about it: it is tracked */
	UNTRACKED_ALLOWED = 2,
	UNTRACKED_DENIED = 3, /* by scratch.policy.rule */
	UNTRACKED_PASSED = 4, /* it passes because it is allowed, whatever flow there is */
};

/* The head of an ICMP message, the same in both families. */
struct icmp_head {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be16 id; /* of a query and its answer */
	__be16 sequence;
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* The last three are of ICMP. */
enum l4 {
	L4_NONE,
	L4_TCP,
	L4_UDP,
	L4_SCTP,
	L4_QUERY,
	L4_ANSWER,
	L4_ERROR
};

struct pkt {
	struct flow_key key; /* L4_ERROR: of the quoted packet turned round */
	ip_addr saddr; /* of the packet itself */
	ip_addr daddr;
	ip_addr tunnel_src; /* outer source, none = did not come through the tunnel */
	__u16 l4_off; /* from the start of the frame */
	__u16 quoted_off; /* L4_ERROR: the quoted IP header */
	__u8 hook; /* enum hook */
	__u8 l4; /* enum l4 */
	__u8 tcp; /* flags; of SCTP, what stands for them */
	__u8 ttl;
	__u8 udp_csum; /* the UDP checksum is there */
	__u8 missed; /* no established flow has this key */
	__u16 l4_len; /* SCTP: bytes from its header to the end of the packet */
	__u16 quoted_l4; /* L4_ERROR: the quoted upper layer */
	__u16 frag_at; /* IPv6: the fragment header */
	__u8 fragment; /* a fragment: the first one unless frag_info says more */
	__u8 malformed; /* a fragment that is */
	__u8 untracked; /* enum untracked: what host endpoints say of the packet by itself */
	__u8 hidden; /* IPv6: PARSED_HIDDEN, whatever else the packet is */
};

/* Where a fragment lies in its packet. */
struct frag_info {
	__u32 id;
	__u32 begin; /* bytes after the IP header */
	__u32 end;
	__u32 frame; /* bytes of the frame, without padding */
	__u8 more;
	__u8 again; /* was kept before */
	__u8 dirty; /* frag_release: the packet was written over */
	__u8 sent; /* frag_release: how many fragments were sent again */
	__u8 released; /* frag_ahead did what frag_first does */
};

/* Does the packet's protocol open its connections, so that the first packet is known by its
 * flags? */
static __always_inline int parse_connects(const struct pkt *p)
{
	return p->l4 == L4_TCP || p->l4 == L4_SCTP;
}

static __always_inline int parse_has_ports(const struct pkt *p)
{
	return p->l4 == L4_TCP || p->l4 == L4_UDP || p->l4 == L4_SCTP;
}

/* May a flow begin with the packet? Not with what answers something, or goes on with it. */
static __always_inline int parse_begins(const struct pkt *p)
{
	if (parse_connects(p))
		return (p->tcp & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	return p->l4 != L4_ANSWER;
}

#define PARSE_QUOTED_MASK 0x3ffu /* holds every offset in a quoted packet's headers */
#define ETH_SIZE ((__u32)sizeof(struct ethhdr))

#include "ip.h"

/* Do eight bytes of the protocol tell the ports, or what stands for them? */
static __always_inline int parse_tells(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_SCTP ||
	       proto == IP_ICMP;
}

/* The query that an ICMP message is, or answers; 0 = neither. Queries with a code that is not 0 are
 * messages as any other: nobody sends them, and policy tells codes apart. */
static __always_inline __u32 parse_query(__u8 type, __u8 code)
{
	return code ? 0 : ip_query(type);
}

/* What stands for the ports of an ICMP message that is no error; see struct flow_key. Returns enum
 * l4. */
static __always_inline __u8 parse_message(__u8 type, __u8 code, __be16 id, __be16 *sport,
					  __be16 *dport)
{
	__u32 query = parse_query(type, code), message = type << 8 | code;
	__be16 beyond = bpf_htons((__u16)(bpf_ntohs(id) + query));

	if (!query) {
		*sport = bpf_htons(message);
		*dport = bpf_htons((__u16)(message + ICMP_ONE_WAY));
		return L4_NONE;
	}
	if (type == query) {
		*sport = id;
		*dport = beyond;
		return L4_QUERY;
	}
	*sport = beyond;
	*dport = id;
	return L4_ANSWER;
}

/* The ports of the packet at the cursor, which an ICMP error quotes that ends at `end`: only eight
 * bytes after the quoted IP header are certain, and of a protocol without ports not even these. */
static __always_inline int parse_quoted(struct cursor *c, struct pkt *p, __u32 end)
{
	__be16 ports[4];

	if (ip_quoted(c, end, &p->key.daddr, &p->key.saddr, &p->key.proto) ||
	    c->off > PARSE_QUOTED_MASK)
		return PARSED_MALFORMED;
	p->quoted_l4 = c->off;
	p->key.sport = 0;
	p->key.dport = 0;
	if (!parse_tells(p->key.proto))
		return c->off > end ? PARSED_MALFORMED : PARSED_OK;
	if (c->off + sizeof(ports) > end || cursor_load(c, c->off, ports, sizeof(ports)))
		return PARSED_MALFORMED;
	if (p->key.proto == IPPROTO_TCP || p->key.proto == IPPROTO_UDP ||
	    p->key.proto == IPPROTO_SCTP) {
		p->key.sport = ports[1];
		p->key.dport = ports[0];
	} else if (p->key.proto == IP_ICMP) {
		parse_message(((__u8 *)ports)[0], ((__u8 *)ports)[1], ports[2], &p->key.dport,
			      &p->key.sport);
	}
	return PARSED_OK;
}

/* Reads the frame into p, whose hook is set. XDP's is of this family's EtherType. Nothing is read
 * for XDP that it leaves to from_uplink: what an ICMP error quotes, the flags of SCTP. */
static __always_inline int parse_packet(struct cursor c, struct pkt *p)
{
	union {
		struct tcphdr tcp;
		struct udphdr udp;
		struct sctp_head sctp;
		struct icmp_head icmp;
	} copy;
	__u32 end;
	int ret;

	p->l4 = L4_NONE;
	p->tcp = 0;
	p->udp_csum = 0;
	p->l4_off = 0;
	p->l4_len = 0;
	p->quoted_off = 0;
	p->quoted_l4 = 0;
	p->frag_at = 0;
	p->fragment = 0;
	p->malformed = 0;
	p->hidden = 0;
	p->key.sport = 0;
	p->key.dport = 0;
	p->key.pad[0] = p->key.pad[1] = p->key.pad[2] = 0;
	if (!c.is_xdp && c.skb->protocol != bpf_htons(IP_ETHERTYPE))
		return c.skb->protocol == bpf_htons(ETH_P_ARP) ? PARSED_LINK : PARSED_OTHER;
	ret = ip_parse(&c, p);
	if (ret != PARSED_OK)
		return ret;
	p->l4_off = c.off;

	switch (p->key.proto) {
	case IPPROTO_TCP: {
		struct tcphdr *tcp;

		if (cursor_head(&c, sizeof(*tcp), IP_L4_MASK, &copy))
			return PARSED_MALFORMED;
		tcp = c.head;
		p->key.sport = tcp->source;
		p->key.dport = tcp->dest;
		p->tcp = ((__u8 *)tcp)[13];
		p->l4 = L4_TCP;
		break;
	}
	case IPPROTO_UDP: {
		struct udphdr *udp;

		if (cursor_head(&c, sizeof(*udp), IP_L4_MASK, &copy))
			return PARSED_MALFORMED;
		udp = c.head;
		p->key.sport = udp->source;
		p->key.dport = udp->dest;
		p->udp_csum = udp->check != 0;
		p->l4 = L4_UDP;
		break;
	}
	case IPPROTO_SCTP: {
		struct sctp_head *sctp;
		__u8 chunk;

		p->l4_len = c.len;
		if (cursor_head(&c, sizeof(*sctp), IP_L4_MASK, &copy))
			return PARSED_MALFORMED;
		sctp = c.head;
		p->key.sport = sctp->source;
		p->key.dport = sctp->dest;
		if (!c.is_xdp && p->l4_len > sizeof(*sctp) &&
		    !cursor_load(&c, c.off + sizeof(*sctp), &chunk, 1))
			p->tcp = sctp_flags(chunk);
		p->l4 = L4_SCTP;
		break;
	}
	case IP_ICMP: {
		struct icmp_head *icmp;

		if (cursor_head(&c, sizeof(*icmp), IP_L4_MASK, &copy))
			return PARSED_MALFORMED;
		icmp = c.head;
		if (ip_is_error(icmp->type)) {
			if (p->fragment)
				return PARSED_MALFORMED;
			p->l4 = L4_ERROR;
			end = c.off + c.len;
			p->quoted_off = c.off + sizeof(*icmp);
			c.off = p->quoted_off;
			return c.is_xdp ? PARSED_OK : parse_quoted(&c, p, end);
		}
		p->l4 = parse_message(icmp->type, icmp->code, icmp->id, &p->key.sport,
				      &p->key.dport);
		break;
	}
	}
	return p->fragment ? PARSED_FRAGMENT : PARSED_OK;
}

#endif
