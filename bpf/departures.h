/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* departures.h: what a pod sends, held to its bandwidth by the time at which each packet may depart
 * (EDT). The queueing discipline fq keeps a packet until then: at the uplink, or, where a packet
 * may stay on the node, at the device of its own to which limited.c leads it before it is
 * evaluated. docs/design/datapath.md, "Limited pods". */
#ifndef WEIR_DEPARTURES_H
#define WEIR_DEPARTURES_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "ip.h"
#include "floating.h"

/* 1 = departure times are in use. Without, the kernel takes out what has to do with them. */
const volatile __u8 departures_enabled = 0;

MAP(weir_departures, BPF_MAP_TYPE_HASH, __u32, struct departure, 8192, BPF_F_NO_PREALLOC);

/* Where a packet waits. */
enum depart {
	DEPART_DEVICE = 0, /* in the pod's device */
	DEPART_LINK = 1, /* at the uplink: it goes on to be evaluated */
	DEPART_LATE = 2, /* nowhere: it would have to wait too long */
};

/* The bytes that the packet has on the wire: the kernel may carry many segments in one buffer, each
 * of which gets its own headers (of TCP with timestamps, which is what sends at full speed). */
static __always_inline __u64 depart_bytes(const struct __sk_buff *skb)
{
	__u32 size = skb->gso_size, len = skb->len;

	if (!size || len <= size)
		return len;
	return len + (__u64)((len - 1) / size) * (ETH_SIZE + sizeof(ip_head) + 32);
}

/* Does the packet leave the node for sure, by an uplink? What is for a Service may be for a pod
 * here, and what egress gateways lead out, too. */
static __noinline int depart_leaves(struct __sk_buff *skb)
{
	struct svc_key key = {};
	struct addr_value *a;
	__u32 at = ETH_SIZE;
	ip_head ip;

	if (skb->protocol != bpf_htons(IP_ETHERTYPE) ||
	    bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return 0;
	addr_load(&key.addr, &ip.daddr);
	a = bpf_map_lookup_elem(&weir_addrs, &key.addr);
	if (a)
		return a->kind == ADDR_POD;
	if (egress_enabled || bpf_map_lookup_elem(&weir_floating, &key.addr))
		return 0;
#if WEIR_FAMILY == 4
	if (ip.frag_off & bpf_htons(0x1fff)) /* no ports */
		return 0;
	key.proto = ip.protocol;
	at += ip.ihl * 4;
#else
	key.proto = ip.nexthdr;
	at += sizeof(ip);
#endif
	if (key.proto != IPPROTO_TCP && key.proto != IPPROTO_UDP)
		return 0;
	if (bpf_skb_load_bytes(skb, at + 2, &key.port, sizeof(key.port)))
		return 0;
	return !bpf_map_lookup_elem(&weir_services, &key);
}

/* Gives what a pod sends its time of departure, and says where it waits, enum depart. The rate is
 * used up to a time that moves on by the time that each packet takes, and is never further back
 * than the burst. */
__noinline int depart(struct __sk_buff *skb)
{
	__u32 from = skb->ifindex;
	__u64 now, took, used;
	struct departure *d;

	if (!departures_enabled)
		return DEPART_DEVICE;
	d = bpf_map_lookup_elem(&weir_departures, &from);
	if (!d || !d->rate)
		return DEPART_DEVICE;
	now = bpf_ktime_get_ns();
	took = depart_bytes(skb) * 1000000000ull / d->rate;
	bpf_spin_lock(&d->lock);
	used = d->used;
	if ((__s64)(used - (now - d->burst)) < 0)
		used = now - d->burst;
	used += took;
	if ((__s64)(used - now - d->wait) > 0)
		used = 0;
	else
		d->used = used;
	bpf_spin_unlock(&d->lock);
	if (!used)
		return DEPART_LATE;
	if ((__s64)(used - now) > 0)
		bpf_skb_set_tstamp(skb, used, BPF_SKB_TSTAMP_DELIVERY_MONO);
	return (d->flags & DEPARTURE_LINKS) && depart_leaves(skb) ? DEPART_LINK : DEPART_DEVICE;
}

#endif
