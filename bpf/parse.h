/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* parse.h: a frame into a flow key. */
#ifndef WEIR_PARSE_H
#define WEIR_PARSE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "abi.h"
#include "sctp.h"

enum hook {
	HOOK_FROM_WORKLOAD,
	HOOK_TO_WORKLOAD,
	HOOK_FROM_UPLINK,
	HOOK_TO_UPLINK,
	HOOK_FROM_TUNNEL,
};

enum parsed {
	PARSED_OK,
	PARSED_NOT_IPV4,
	PARSED_ARP,
	PARSED_MALFORMED,
	PARSED_FRAGMENT,
	PARSED_CAST, /* multicast or broadcast */
};

/* RFC 792. <linux/icmp.h> drags in the C library's headers. */
#define ICMP_ECHOREPLY 0
#define ICMP_DEST_UNREACH 3
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12

struct icmp_head {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be16 id; /* echo */
	__be16 sequence;
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

enum l4 { L4_NONE, L4_TCP, L4_UDP, L4_SCTP, L4_ECHO_REQUEST, L4_ECHO_REPLY, L4_ERROR };

struct pkt {
	struct flow_key key; /* L4_ERROR: of the quoted packet turned round */
	ip_addr saddr; /* of the packet itself */
	ip_addr daddr;
	ip_addr tunnel_src; /* outer source, none = did not come through the tunnel */
	__u16 l4_off; /* from the start of the frame */
	__u16 quoted_off; /* L4_ERROR: the quoted IP header */
	__u8 hook; /* enum hook */
	__u8 l4;   /* enum l4 */
	__u8 tcp;  /* flags; of SCTP, what stands for them */
	__u8 ttl;
	__u8 udp_csum; /* the UDP checksum is there */
	__u8 missed; /* no established flow has this key */
	__u16 l4_len; /* SCTP: bytes from its header to the end of the packet */
	__u8 fragment; /* a fragment: the first one unless frag_info says more */
	__u8 malformed; /* a fragment that is */
	__u8 pad[2];
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
	__u8 pad;
};

/* Does the packet's protocol open its connections, so that the first packet is known by its flags? */
static __always_inline int parse_connects(const struct pkt *p)
{
	return p->l4 == L4_TCP || p->l4 == L4_SCTP;
}

static __always_inline int parse_has_ports(const struct pkt *p)
{
	return p->l4 == L4_TCP || p->l4 == L4_UDP || p->l4 == L4_SCTP;
}

#define ETH_SIZE ((__u32)sizeof(struct ethhdr))

/* Makes the first `need` bytes readable by pointer. 0 on success. */
static __always_inline int parse_pull(struct __sk_buff *skb, __u32 need)
{
	if ((void *)(long)skb->data + need <= (void *)(long)skb->data_end)
		return 0;
	if (skb->len < need)
		return -1;
	if (bpf_skb_pull_data(skb, need))
		return -1;
	return (void *)(long)skb->data + need <= (void *)(long)skb->data_end ? 0 : -1;
}

/* Whether a tunnel's outer addresses are IPv6: flags of bpf_skb_get_tunnel_key and bpf_skb_set_tunnel_key. */
#define PARSE_TUNNEL_FLAGS 0

/* The outer source of a packet that came out of the tunnel; the helper gives IPv4 in host byte order. */
static __always_inline void parse_outer(ip_addr *src, const struct bpf_tunnel_key *key)
{
	src->w[0] = bpf_htonl(key->remote_ipv4);
}

/* The ports of a packet that an ICMP error quotes: only eight bytes after its IP header are certain. */
static __always_inline int parse_quoted(struct __sk_buff *skb, struct pkt *p)
{
	__u32 off = p->quoted_off;
	struct {
		struct iphdr ip;
	} q;
	__be16 ports[4];
	__u32 l4;

	if (bpf_skb_load_bytes(skb, off, &q.ip, sizeof(q.ip)))
		return PARSED_MALFORMED;
	if (q.ip.version != 4 || q.ip.ihl < 5)
		return PARSED_MALFORMED;
	l4 = off + q.ip.ihl * 4;
	if (bpf_skb_load_bytes(skb, l4, ports, sizeof(ports)))
		return PARSED_MALFORMED;
	p->key.saddr.w[0] = q.ip.daddr;
	p->key.daddr.w[0] = q.ip.saddr;
	p->key.proto = q.ip.protocol;
	p->key.sport = 0;
	p->key.dport = 0;
	if (q.ip.protocol == IPPROTO_TCP || q.ip.protocol == IPPROTO_UDP || q.ip.protocol == IPPROTO_SCTP) {
		p->key.sport = ports[1];
		p->key.dport = ports[0];
	} else if (q.ip.protocol == IPPROTO_ICMP) {
		__u8 type = ((__u8 *)ports)[0];

		if (type == ICMP_ECHO)
			p->key.dport = ports[2];
		else if (type == ICMP_ECHOREPLY)
			p->key.sport = ports[2];
	}
	return PARSED_OK;
}

static __always_inline int parse_packet(struct __sk_buff *skb, struct pkt *p)
{
	struct ethhdr *eth;
	struct iphdr *ip;
	__u32 l4, len;

	p->l4 = L4_NONE;
	p->tcp = 0;
	p->udp_csum = 0;
	p->quoted_off = 0;
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return PARSED_ARP;
	if (skb->protocol != bpf_htons(ETH_P_IP))
		return PARSED_NOT_IPV4;
	if (parse_pull(skb, ETH_SIZE + sizeof(*ip)))
		return PARSED_MALFORMED;
	eth = (void *)(long)skb->data;
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return PARSED_MALFORMED;
	len = bpf_ntohs(ip->tot_len);
	if (!len && skb->gso_size) /* more than 64 KiB in one buffer */
		len = 0xffff;
	else if (ETH_SIZE + len > skb->len)
		return PARSED_MALFORMED;
	if (ip->version != 4 || ip->ihl < 5 || len < ip->ihl * 4)
		return PARSED_MALFORMED;
	p->saddr.w[0] = p->key.saddr.w[0] = ip->saddr;
	p->daddr.w[0] = p->key.daddr.w[0] = ip->daddr;
	p->key.proto = ip->protocol;
	p->key.sport = 0;
	p->key.dport = 0;
	p->key.pad[0] = p->key.pad[1] = p->key.pad[2] = 0;
	p->ttl = ip->ttl;
	if ((ip->daddr & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) || ip->daddr == 0xffffffff)
		return PARSED_CAST;
	if (ip->frag_off & bpf_htons(0x3fff)) {
		p->fragment = 1;
		if (ip->frag_off & bpf_htons(0x1fff))
			return PARSED_FRAGMENT;
	}
	l4 = ETH_SIZE + ip->ihl * 4;
	p->l4_off = l4;

	switch (ip->protocol) {
	case IPPROTO_TCP: {
		struct tcphdr *tcp;

		if (len < ip->ihl * 4 + sizeof(*tcp) || parse_pull(skb, l4 + sizeof(*tcp)))
			return PARSED_MALFORMED;
		tcp = (void *)(long)skb->data + (l4 & 0x7f);
		if ((void *)(tcp + 1) > (void *)(long)skb->data_end)
			return PARSED_MALFORMED;
		p->key.sport = tcp->source;
		p->key.dport = tcp->dest;
		p->tcp = ((__u8 *)tcp)[13];
		p->l4 = L4_TCP;
		break;
	}
	case IPPROTO_UDP: {
		struct udphdr *udp;

		if (len < ip->ihl * 4 + sizeof(*udp) || parse_pull(skb, l4 + sizeof(*udp)))
			return PARSED_MALFORMED;
		udp = (void *)(long)skb->data + (l4 & 0x7f);
		if ((void *)(udp + 1) > (void *)(long)skb->data_end)
			return PARSED_MALFORMED;
		p->key.sport = udp->source;
		p->key.dport = udp->dest;
		p->udp_csum = udp->check != 0;
		p->l4 = L4_UDP;
		break;
	}
	case IPPROTO_SCTP: {
		struct sctp_head *sctp;
		__u8 chunk;

		p->l4_len = len - ip->ihl * 4;
		if (p->l4_len < sizeof(*sctp) || parse_pull(skb, l4 + sizeof(*sctp)))
			return PARSED_MALFORMED;
		sctp = (void *)(long)skb->data + (l4 & 0x7f);
		if ((void *)(sctp + 1) > (void *)(long)skb->data_end)
			return PARSED_MALFORMED;
		p->key.sport = sctp->source;
		p->key.dport = sctp->dest;
		if (p->l4_len > sizeof(*sctp) && !bpf_skb_load_bytes(skb, l4 + sizeof(*sctp), &chunk, 1))
			p->tcp = sctp_flags(chunk);
		p->l4 = L4_SCTP;
		break;
	}
	case IPPROTO_ICMP: {
		struct icmp_head *icmp;

		if (len < ip->ihl * 4 + sizeof(*icmp) || parse_pull(skb, l4 + sizeof(*icmp)))
			return PARSED_MALFORMED;
		icmp = (void *)(long)skb->data + (l4 & 0x7f);
		if ((void *)(icmp + 1) > (void *)(long)skb->data_end)
			return PARSED_MALFORMED;
		if (icmp->type == ICMP_ECHO) {
			p->key.sport = icmp->id;
			p->l4 = L4_ECHO_REQUEST;
		} else if (icmp->type == ICMP_ECHOREPLY) {
			p->key.dport = icmp->id;
			p->l4 = L4_ECHO_REPLY;
		} else if (icmp->type == ICMP_DEST_UNREACH || icmp->type == ICMP_TIME_EXCEEDED ||
			   icmp->type == ICMP_PARAMETERPROB) {
			if (p->fragment)
				return PARSED_MALFORMED;
			p->l4 = L4_ERROR;
			p->quoted_off = l4 + sizeof(*icmp);
			return parse_quoted(skb, p);
		}
		break;
	}
	}
	return p->fragment ? PARSED_FRAGMENT : PARSED_OK;
}

/* Where the fragment lies that parse_packet found. */
static __always_inline int parse_fragment(struct __sk_buff *skb, const struct pkt *p, struct frag_info *g)
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

#endif
