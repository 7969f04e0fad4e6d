/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* clock.h: a clock that costs one load. Its unit is 256 jiffies; user space knows HZ. */
#ifndef WEIR_CLOCK_H
#define WEIR_CLOCK_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

static __always_inline __u32 clock_now(void)
{
	return (__u32)(bpf_jiffies64() >> 8);
}

/* Is a moment longer ago than the limit? Another processor may have noted it after this one read
 * now. */
static __always_inline int clock_past(__u32 now, __u32 seen, __u32 limit)
{
	return (__s32)(now - seen) > (__s32)limit;
}

/* A finer one for short times, in units of 16 jiffies: differences of up to 65,535 of them. */
static __always_inline __u16 clock_fine(void)
{
	return (__u16)(bpf_jiffies64() >> 4);
}

#endif
