/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* mtu.h: does a packet fit the way of its flow? A redirect sends whatever it is given. */
#ifndef WEIR_MTU_H
#define WEIR_MTU_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "parse.h"

#define MTU_LEAST 68 /* RFC 791; less is not an MTU */
#define MTU_NONE 0xffff /* nothing on the way limits the packet */
#define MTU_BY_FRAGS 0xffff /* gso_size of SCTP: every segment has a size of its own */

static __always_inline __u16 mtu_bounded(__u32 mtu)
{
	return mtu < MTU_LEAST || mtu > MTU_NONE ? MTU_NONE : mtu;
}

/* Of an interface, by which the packet leaves. */
static __always_inline __u16 mtu_of_link(struct __sk_buff *skb, __u32 ifindex)
{
	__u32 mtu = 0;

	/* That the packet at hand is too big for it does not matter here. */
	return bpf_check_mtu(skb, ifindex, &mtu, 0, 0) < 0 ? MTU_NONE : mtu_bounded(mtu);
}

/* Is what leaves as more than one packet (GSO) in pieces that are too big? */
static __noinline int mtu_too_big(struct __sk_buff *skb, struct pkt *p, __u32 mtu)
{
	__u32 head, gso = skb->gso_size;
	__u8 doff;

	if (!p || !mtu || gso == MTU_BY_FRAGS)
		return 0;
	if (!gso)
		return 1;
	head = (p->l4_off & IP_L4_MASK) - ETH_SIZE;
	if (p->l4 == L4_TCP) {
		if (bpf_skb_load_bytes(skb, (p->l4_off & IP_L4_MASK) + 12, &doff, 1))
			return 0;
		head += (doff >> 4) * 4;
	} else {
		head += 8; /* UDP */
	}
	return head + gso > mtu;
}

/* Is the packet too big for the way of its flow? One comparison for nearly all. */
static __always_inline int mtu_exceeds(struct __sk_buff *skb, struct pkt *p,
				       const struct flow_value *f)
{
	return skb->len > ETH_SIZE + f->mtu && mtu_too_big(skb, p, f->mtu);
}

#endif
