/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* addr.h: the address type. Each program is compiled once a family, with -DWEIR_FAMILY=4 or 6; this
 * is all that the switch decides here. Addresses are compared and emptied by these functions only,
 * in network byte order. */
#ifndef WEIR_ADDR_H
#define WEIR_ADDR_H

#include <linux/types.h>

#ifndef WEIR_FAMILY
#define WEIR_FAMILY 4
#endif

#if WEIR_FAMILY == 6
#define ADDR_WORDS 4
#define ADDR_AF 10 /* AF_INET6 */
#else
#define ADDR_WORDS 1
#define ADDR_AF 2 /* AF_INET */
#endif

#define ADDR_BITS (32 * ADDR_WORDS)

typedef struct {
	__be32 w[ADDR_WORDS];
} ip_addr;

static __inline__ __attribute__((always_inline)) int addr_same(const ip_addr *a, const ip_addr *b)
{
	__be32 diff = 0;

#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		diff |= a->w[i] ^ b->w[i];
	return diff == 0;
}

static __inline__ __attribute__((always_inline)) int addr_is_none(const ip_addr *a)
{
	__be32 any = 0;

#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		any |= a->w[i];
	return any == 0;
}

/* The unspecified address. */
static __inline__ __attribute__((always_inline)) ip_addr addr_none(void)
{
	ip_addr none = {};

	return none;
}

/* 127.0.0.0/8 (RFC 1122 section 3.2.1.3), ::1 (RFC 4291 section 2.5.3). */
static __inline__ __attribute__((always_inline)) int addr_is_loopback(const ip_addr *a)
{
	__be32 high = 0;

	if (ADDR_WORDS == 1)
		return (a->w[0] & __builtin_bswap32(0xff000000)) == __builtin_bswap32(0x7f000000);
#pragma unroll
	for (int i = 0; i < ADDR_WORDS - 1; i++)
		high |= a->w[i];
	return !high && a->w[ADDR_WORDS - 1] == __builtin_bswap32(1);
}

/* As 16 bytes in both families; those of IPv4 mapped (RFC 4291 section 2.5.5.2). */
static __inline__ __attribute__((always_inline)) void addr_widen(__be32 *to, const ip_addr *a)
{
	if (ADDR_WORDS == 1) {
		to[0] = to[1] = 0;
		to[2] = __builtin_bswap32(0xffff);
		to[3] = a->w[0];
		return;
	}
#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		to[i] = a->w[i];
}

/* Addresses as packets and the kernel's structures hold them: from 4 or 16 bytes, and to them, by
 * words. */
static __inline__ __attribute__((always_inline)) void addr_load(ip_addr *a, const void *from)
{
	const __be32 *words = from;

#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		a->w[i] = words[i];
}

static __inline__ __attribute__((always_inline)) void addr_store(void *to, const ip_addr *a)
{
	__be32 *words = to;

#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		words[i] = a->w[i];
}

#endif
