/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* names_hand.h: what names.c cannot read of DNS servers' answers goes by way of the agent, which
 * reads it and sends it on to the pod. Nothing waits for an agent that is not there. */
#ifndef WEIR_NAMES_HAND_H
#define WEIR_NAMES_HAND_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "parse.h"

MAP(weir_name_reader, BPF_MAP_TYPE_ARRAY, __u32, struct name_reader, 1, 0);
MAP(weir_name_handed, BPF_MAP_TYPE_ARRAY, __u32, __u32, 1, 0);
MAP(weir_name_waits, BPF_MAP_TYPE_LRU_HASH, __u32, struct name_waits, 4096, 0);
MAP(weir_name_streams, BPF_MAP_TYPE_LRU_HASH, struct name_question, struct name_stream, 16384, 0);

enum name_step {
	NAME_PASS, /* nothing to read */
	NAME_READ, /* a message to read here */
	NAME_HAND, /* the agent is to read it */
	NAME_LOST, /* nobody can */
};

/* May so many frames more of the pod at an interface go to the agent, which has read as much as
 * done? Counts them, up to what is handed then. Processors that count at once may miss a few. */
static __always_inline int names_waits(__u32 ifindex, __u32 frames, __u32 handed, __u32 done)
{
	struct name_waits *v = bpf_map_lookup_elem(&weir_name_waits, &ifindex);
	struct name_waits fresh = { .last = handed + frames, .count = frames };

	if (frames > NAME_HANDED_EACH)
		return 0;
	if (!v) {
		bpf_map_update_elem(&weir_name_waits, &ifindex, &fresh, BPF_ANY);
		return 1;
	}
	if ((__s32)(done - v->last) >= 0)
		v->count = 0; /* all of the pod's are read */
	if (v->count + frames > NAME_HANDED_EACH)
		return 0;
	v->count += frames;
	v->last = handed + frames;
	return 1;
}

/* Leads the packet to the agent. 0 = there is none that would send it on at once. */
static __always_inline int names_hand(struct __sk_buff *skb)
{
	__u32 zero = 0, len = 0, to;
	struct name_reader *r = bpf_map_lookup_elem(&weir_name_reader, &zero);
	__u32 *handed = bpf_map_lookup_elem(&weir_name_handed, &zero);
	struct {
		__u8 local;
		__u8 none;
		__u8 ifindex[4];
	} from = { .local = 2 };
	__u32 ifindex = skb->ifindex, frames = skb->gso_segs;

	if (!r || !handed || !r->ifindex)
		return 0;
	to = r->ifindex;
	if (!frames)
		frames = 1; /* the agent's device gets segments one by one */
	if ((__s64)(bpf_ktime_get_ns() - r->beat) > NAME_BEAT_NS ||
	    (__s32)(*handed + frames - r->done) > NAME_HANDED_MOST)
		return 0;
	/* The device is gone as soon as the agent is. Linux 5.12 and later tell. */
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_check_mtu) &&
	    bpf_check_mtu(skb, to, &len, 0, 0) < 0)
		return 0;
	__builtin_memcpy(from.ifindex, &ifindex, 4);
	if (!names_waits(ifindex, frames, *handed, r->done) ||
	    bpf_skb_store_bytes(skb, ETH_ALEN, &from, sizeof(from), 0))
		return 0;
	__sync_fetch_and_add(handed, frames);
	return bpf_redirect(to, 0);
}

/* A segment that a trusted server sends, whose TCP header is at off, in a packet that ends at end.
 * Messages are found by their place in the stream alone, from its beginning on: what a server sends
 * within a message may look like another one. One message in one segment is for names.c. *msg is
 * where it begins, and *size what the segment has; both are of NAME_READ alone. */
static __always_inline int names_segment(struct __sk_buff *skb, const struct name_question *key,
					 __u32 off, __u32 end, __u32 *msg, __u32 *size)
{
	struct {
		__be32 seq;
		__be32 ack;
		__u8 words;
		__u8 flags;
		__be16 window;
	} t;
	struct name_stream *s = bpf_map_lookup_elem(&weir_name_streams, key), fresh = {};
	__u32 seq, data, n;
	__be16 len;

	if (bpf_skb_load_bytes(skb, off + 4, &t, sizeof(t)))
		return NAME_PASS;
	seq = bpf_ntohl(t.seq);
	if ((t.flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK)) {
		if (s && s->first == seq)
			return NAME_PASS; /* sent again */
		fresh.first = seq;
		fresh.next = seq + 1;
		bpf_map_update_elem(&weir_name_streams, key, &fresh, BPF_ANY);
		return NAME_PASS;
	}
	data = off + (t.words >> 4) * 4;
	n = end > data ? end - data : 0;
	if (!s)
		return n ? NAME_LOST : NAME_PASS;
	if (s->state == NAME_STREAM_HANDED)
		return NAME_HAND; /* all of it, so that its order stays */
	if (!n || s->state == NAME_STREAM_LOST || (__s32)(seq + n - s->next) <= 0)
		return NAME_PASS;
	if (seq != s->next || n < 2 || bpf_skb_load_bytes(skb, data, &len, 2) ||
	    bpf_ntohs(len) + 2 != n)
		return NAME_HAND;
	s->next += n;
	*msg = data + 2;
	*size = n;
	return NAME_READ;
}

/* Notes that a stream, or the fragments of a packet, go by way of the agent from now on, or are
 * lost to it. The agent begins to read a stream with what names.c read nothing of. */
static __always_inline void names_stream(const struct name_question *key, __u32 state, __u32 back)
{
	struct name_stream *s = bpf_map_lookup_elem(&weir_name_streams, key), fresh = {};

	if (s) {
		if (s->state != state)
			s->next -= back;
		s->state = state;
	} else if (key->proto == IPPROTO_FRAGMENT) {
		fresh.state = state;
		bpf_map_update_elem(&weir_name_streams, key, &fresh, BPF_ANY);
	}
}

#endif
