/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* mss.h: TCP segments that fit the tunnel. An outside client, whose MTU we do not set, may be
 * handed on through it; so both SYNs announce no more than fits (RFC 9293 section 3.7.1). */
#ifndef WEIR_MSS_H
#define WEIR_MSS_H

#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "parse.h"
#include "nat.h"

#define MSS_HEADERS (sizeof(ip_head) + sizeof(struct tcphdr)) /* without options */
#define MSS_OPTIONS 40 /* bytes, at most */
#define MSS_KIND 2

/* What the tunnel carries by which nodes hand on. */
static __always_inline __u32 mss_tunnel(const struct settings *s)
{
	return WEIR_FAMILY == 4 && (s->flags & SET_IPIP_NODES) ? s->ipip_mtu : s->tunnel_mtu;
}

/* Lowers the MSS option of a SYN to mtu, what the tunnel carries. A SYN without a well-formed
 * option stays as it is. */
static __noinline int mss_clamp(struct __sk_buff *skb, struct pkt *p, __u32 mtu)
{
	__u32 off, end, limit;
	__u8 opt[4];

	if (!p || p->l4 != L4_TCP || p->fragment || mtu <= MSS_HEADERS || mtu > 0xffff)
		return 0;
	limit = mtu - MSS_HEADERS;
	off = p->l4_off & IP_L4_MASK;
	if (bpf_skb_load_bytes(skb, off + 12, opt, 1))
		return 0;
	end = off + (opt[0] >> 4) * 4;
	off += sizeof(struct tcphdr);
	for (int i = 0; i < MSS_OPTIONS && off + 4 <= end; i++) {
		__be16 was, now;

		if (bpf_skb_load_bytes(skb, off, opt, sizeof(opt)) || opt[0] == 0)
			return 0;
		if (opt[0] == 1) {
			off++;
			continue;
		}
		if (opt[0] != MSS_KIND) {
			if (opt[1] < 2)
				return 0;
			off += opt[1];
			continue;
		}
		if (opt[1] != 4 || ((__u32)opt[2] << 8 | opt[3]) <= limit)
			return 0;
		__builtin_memcpy(&was, &opt[2], 2);
		now = bpf_htons((__u16)limit);
		/* At an odd offset the value straddles two words of the checksum: its bytes are swapped
		 * there. */
		if ((off - (p->l4_off & IP_L4_MASK)) & 1)
			bpf_l4_csum_replace(
				skb, (p->l4_off & IP_L4_MASK) + offsetof(struct tcphdr, check),
				(__u16)(was << 8 | was >> 8), (__u16)(now << 8 | now >> 8), 2);
		else
			bpf_l4_csum_replace(
				skb, (p->l4_off & IP_L4_MASK) + offsetof(struct tcphdr, check), was,
				now, 2);
		bpf_skb_store_bytes(skb, off + 2, &now, 2, 0);
		return 0;
	}
	return 0;
}

#endif
