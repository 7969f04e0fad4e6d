/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* cursor.h: the frame that the parser reads, of tc or of XDP, and how far it is. The functions are
 * compiled into their callers, which know at compile time which of the two it is: nothing of the
 * other is left. */
#ifndef WEIR_CURSOR_H
#define WEIR_CURSOR_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

struct cursor {
	struct __sk_buff *skb;
	struct xdp_md *xdp;
	int is_xdp; /* a constant: whose frame it is */
	__u32 off; /* of what is read next, from the start of the frame */
	__u32 len; /* bytes of the packet from there on; padding may follow */
	void *head; /* what cursor_head found */
};

static __always_inline struct cursor cursor_of_tc(struct __sk_buff *skb)
{
	struct cursor c = { .skb = skb };

	return c;
}

static __always_inline struct cursor cursor_of_xdp(struct xdp_md *ctx)
{
	struct cursor c = { .xdp = ctx, .is_xdp = 1 };

	return c;
}

/* The interface at whose hook the frame is. */
static __always_inline __u32 cursor_ifindex(const struct cursor *c)
{
	return c->is_xdp ? c->xdp->ingress_ifindex : c->skb->ifindex;
}

static __always_inline void *cursor_data(const struct cursor *c)
{
	return c->is_xdp ? (void *)(long)c->xdp->data : (void *)(long)c->skb->data;
}

/* The end of what can be read by pointer. */
static __always_inline void *cursor_data_end(const struct cursor *c)
{
	return c->is_xdp ? (void *)(long)c->xdp->data_end : (void *)(long)c->skb->data_end;
}

/* The bytes of the frame. */
static __always_inline __u32 cursor_frame(const struct cursor *c)
{
	return c->is_xdp ? bpf_xdp_get_buff_len(c->xdp) : c->skb->len;
}

/* Is it more than one segment, so that the length may not fit its field? XDP sees frames as they
 * came. */
static __always_inline int cursor_is_merged(const struct cursor *c)
{
	return !c->is_xdp && c->skb->gso_size;
}

/* 0 on success. */
static __always_inline long cursor_load(const struct cursor *c, __u32 off, void *to, __u32 bytes)
{
	return c->is_xdp ? bpf_xdp_load_bytes(c->xdp, off, to, bytes) :
			   bpf_skb_load_bytes(c->skb, off, to, bytes);
}

/* Makes the first `need` bytes readable by pointer, in tc. 0 on success. */
static __always_inline int cursor_pull_tc(struct __sk_buff *skb, __u32 need)
{
	if ((void *)(long)skb->data + need <= (void *)(long)skb->data_end)
		return 0;
	if (skb->len < need)
		return -1;
	if (bpf_skb_pull_data(skb, need))
		return -1;
	return (void *)(long)skb->data + need <= (void *)(long)skb->data_end ? 0 : -1;
}

static __always_inline int cursor_pull(const struct cursor *c, __u32 need)
{
	return c->is_xdp ? 0 : cursor_pull_tc(c->skb, need);
}

/* Points c->head at the next `bytes` bytes. Offsets are below `mask`, which tells the verifier so.
 * What XDP has in another buffer than the first is copied. 0 on success. */
static __always_inline int cursor_head(struct cursor *c, __u32 bytes, __u32 mask, void *copy)
{
	if (c->len < bytes || cursor_pull(c, c->off + bytes))
		return -1;
	c->head = cursor_data(c) + (c->off & mask);
	if (c->head + bytes <= cursor_data_end(c))
		return 0;
	if (!c->is_xdp || cursor_load(c, c->off, copy, bytes))
		return -1;
	c->head = copy;
	return 0;
}

#endif
