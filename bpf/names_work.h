/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* names_work.h: what names.c knows of the answer at hand, and where it is in the frame. */
#ifndef WEIR_NAMES_WORK_H
#define WEIR_NAMES_WORK_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "names.h"
#include "names_hand.h"

#define NAME_LABELS 32 /* labels and pointers that are followed in one name */
#define NAME_EXTENSIONS 4 /* headers of IPv6 before the transport's */
#define NAME_MOST 254 /* characters of a name, dots among them */
#define NAME_RECORDS 64 /* of an answer that are looked at, */
#define NAME_ADDRS 64 /* and addresses; a power of 2 */
#define NAME_TTL_LEAST 10 /* seconds: what is asked at once is used at once */
#define NAME_TTL_MOST 604800

#define DNS_A 1
#define DNS_CNAME 5
#define DNS_AAAA 28
#define DNS_SVCB 64
#define DNS_HTTPS 65
#define DNS_CLASS_IN 1

/* What is known of the answer at hand. */
struct name_work {
	struct name_pod pod;
	__u32 ifindex;
	__u32 now;
	__u32 l4; /* where the transport's header begins in the frame, */
	__u32 msg; /* the message, */
	__u32 end; /* and where the packet ends */
	__u32 size; /* of a whole message that a segment has, with its length; else 0 */
	__u32 hints; /* records of the answer have addresses that only the agent reads */
	struct name_question q; /* the question; of a TCP segment with ID 0 its stream */
	struct name_question pieces; /* of a fragment: the packet */
	__u32 count; /* of patterns */
	__u32 staged; /* a bit for each that staged policies alone have */
	__u64 patterns[NAME_MATCHES]; /* of the set that names of the answer match */
	__u32 ttl; /* the least of the chain of names */
	__u32 addrs;
	struct {
		__be32 addr[4];
		__u32 ttl;
	} addr[NAME_ADDRS];
	struct name_key key;
	struct {
		__u32 len; /* bits of a struct name_key: the group, and the name as it is written */
		__u32 group[2];
		__u8 name[NAME_BYTES + 64];
	} head;
	struct named_key named; /* the address that is noted, */
	struct name_said said; /* and of which name it is said until when */
	__u64 fresh[sizeof(struct named_value) / 8]; /* an empty one: no lock may be here */
};
MAP(weir_name_work, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct name_work, 1, 0);

static __always_inline struct name_work *names_work(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_name_work, &zero);
}

static __always_inline void names_count(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&weir_name_counts, &which);

	if (n)
		(*n)++;
}

/* Finds what answers may be in, in the frame: the transport's header is at w->l4 then, and the
 * message at w->msg. Says what the packet's question, and its stream, are found by. */
static __always_inline int names_packet(struct __sk_buff *skb, struct name_work *w,
					struct name_question *q)
{
	struct {
		__be16 source;
		__be16 dest;
	} ports;
	struct {
		__u8 next;
		__u8 len;
		__be16 piece; /* of a fragment's header, as the identification */
		__be32 id;
	} extension;
	__u32 off = ETH_HLEN;
	__be16 piece = 0, len;
	__u8 head, proto;

	w->pieces.ifindex = q->ifindex;
	w->pieces.proto = 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, off, &head, 1) ||
		    bpf_skb_load_bytes(skb, off + 2, &len, 2) ||
		    bpf_skb_load_bytes(skb, off + 9, &proto, 1) ||
		    bpf_skb_load_bytes(skb, off + 6, &piece, 2) ||
		    bpf_skb_load_bytes(skb, off + 12, &q->server[3], 4))
			return NAME_PASS;
		q->server[2] = bpf_htonl(0xffff);
		w->end = off + bpf_ntohs(len);
		if (piece & bpf_htons(0x3fff)) {
			w->pieces.proto = IPPROTO_FRAGMENT;
			w->pieces.id = 0;
			if (bpf_skb_load_bytes(skb, off + 4, &w->pieces.port, 2))
				return NAME_PASS;
		}
		piece &= bpf_htons(0x1fff); /* what the header says beside it is for others */
		off += (head & 15) * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, off + 4, &len, 2) ||
		    bpf_skb_load_bytes(skb, off + 6, &proto, 1) ||
		    bpf_skb_load_bytes(skb, off + 8, q->server, 16))
			return NAME_PASS;
		off += 40;
		w->end = off + bpf_ntohs(len);
		for (int i = 0; i < NAME_EXTENSIONS; i++) {
			if (proto != IPPROTO_HOPOPTS && proto != IPPROTO_DSTOPTS &&
			    proto != IPPROTO_ROUTING && proto != IPPROTO_FRAGMENT)
				break;
			if (bpf_skb_load_bytes(skb, off, &extension, 8))
				return NAME_PASS;
			if (proto == IPPROTO_FRAGMENT) {
				w->pieces.proto = proto;
				w->pieces.port = (__be16)extension.id;
				w->pieces.id = (__be16)(extension.id >> 16);
				piece = extension.piece & bpf_htons(0xfff8);
				off += 8;
				proto = extension.next;
				break; /* of a later one the rest is no header */
			}
			off += (extension.len + 1) * 8;
			proto = extension.next;
		}
	} else {
		return NAME_PASS;
	}
	__builtin_memcpy(w->pieces.server, q->server, 16);
	if (piece)
		return bpf_map_lookup_elem(&weir_name_streams, &w->pieces) ? NAME_HAND : NAME_PASS;
	if ((proto != IPPROTO_UDP && proto != IPPROTO_TCP) ||
	    bpf_skb_load_bytes(skb, off, &ports, 4) || ports.source != bpf_htons(DNS_PORT))
		return NAME_PASS;
	q->proto = proto;
	q->port = ports.dest;
	w->l4 = off;
	if (proto == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, off + 12, &head, 1))
			return NAME_PASS;
		off += (head >> 4) * 4 + 2;
	} else {
		off += 8;
	}
	w->msg = off;
	return NAME_READ;
}

#endif
