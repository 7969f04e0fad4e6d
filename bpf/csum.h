/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* csum.h: one's complement sums (RFC 1071, 1624). */
#ifndef WEIR_CSUM_H
#define WEIR_CSUM_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "addr.h"

static __always_inline __u16 csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)sum;
}

/* Difference of two words, to be added to a sum. */
static __always_inline __u32 csum_diff32(__u32 from, __u32 to)
{
	return (~from & 0xffff) + (~from >> 16) + (to & 0xffff) + (to >> 16);
}

static __always_inline __u32 csum_diff16(__u16 from, __u16 to)
{
	return (__u16)~from + (__u32)to;
}

static __always_inline __u32 csum_diff_addr(const ip_addr *from, const ip_addr *to)
{
	__u32 diff = 0;

#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		diff += csum_diff32(from->w[i], to->w[i]);
	return diff;
}

#endif
