/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* sctp.h: SCTP (RFC 9260). The first chunk tells what TCP tells by flags. The checksum is a CRC32c
 * over the whole packet, but CRCs are linear: what other ports change in it follows from the ports
 * alone and from the number of bytes up to the end, so the payload is not read. */
#ifndef WEIR_SCTP_H
#define WEIR_SCTP_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

struct sctp_head {
	__be16 source;
	__be16 dest;
	__be32 tag;
	/* 0: a local socket's that the stack or the device computes later (or RFC 9653) */
	__le32 checksum;
};

enum sctp_chunk {
	SCTP_INIT = 1,
	SCTP_INIT_ACK = 2,
	SCTP_ABORT = 6,
	SCTP_SHUTDOWN = 7,
	SCTP_SHUTDOWN_ACK = 8,
	SCTP_SHUTDOWN_COMPLETE = 14,
};

#define SCTP_FIN 0x01
#define SCTP_SYN 0x02
#define SCTP_RST 0x04
#define SCTP_ACK 0x10

/* TCP's flags of the same meaning as a first chunk. */
static __always_inline __u8 sctp_flags(__u8 chunk)
{
	switch (chunk) {
	case SCTP_INIT: return SCTP_SYN;
	case SCTP_INIT_ACK: return SCTP_SYN | SCTP_ACK;
	case SCTP_SHUTDOWN:
	case SCTP_SHUTDOWN_ACK: return SCTP_FIN | SCTP_ACK;
	case SCTP_ABORT:
	case SCTP_SHUTDOWN_COMPLETE: return SCTP_RST | SCTP_ACK;
	}
	return SCTP_ACK;
}

#define CRC32C 0x82f63b78u /* the polynomial, bit 31 = x^0 */

/* x^(8 * 2^i) modulo the polynomial */
static const __u32 sctp_powers[16] = {
	0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a,
	0xb82be955, 0xb8fdb1e7, 0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a,
	0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc,
};

/* a * b modulo the polynomial. Global: verified once. */
__noinline __u32 sctp_multiply(__u32 a, __u32 b)
{
	__u32 product = 0;

	for (int i = 0; i < 32; i++) {
		product ^= a & -(b >> 31);
		b <<= 1;
		a = a >> 1 ^ (CRC32C & -(a & 1));
	}
	return product;
}

/* The change of the CRC of `bytes` bytes whose first four change by `diff` (as they lie, little
 * endian). */
static __always_inline __u32 sctp_crc_change(__u32 diff, __u32 bytes)
{
	for (int i = 0; i < 16; i++) {
		if (bytes >> i & 1)
			diff = sctp_multiply(diff, sctp_powers[i]);
	}
	return diff;
}

#endif
