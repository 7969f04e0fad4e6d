/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* abi_names.h: policy by domain name: what names policies have, and what pods were told of them by
 * DNS. A part of abi.h. docs/design/domain-names.md says how they are used. All of these maps are
 * of both families: addresses have 16 bytes, those of IPv4 mapped (RFC 4291 section 2.5.5.2). */
#ifndef WEIR_ABI_NAMES_H
#define WEIR_ABI_NAMES_H

#include <linux/types.h>

/* map weir_name_patterns: LPM struct name_key -> struct name_match; what patterns a name matches.
 * A name is in lower case, without the last dot and from its end on: "moc.elpmaxe". A pattern of
 * one name has a 0 behind it; "*.example.com" is the prefix "moc.elpmaxe." Patterns with something
 * before their wildcard ("www.*.example.com") are under the same prefix, as a group of all that
 * end alike. What a group's patterns begin with is under keys of their own, of 8 bytes that say
 * the group and the beginning as it is written: "www." A group's first byte is 0, which no name
 * has; group 0 is that of patterns that end with their wildcard. */
#define NAME_BYTES 256

struct name_key {
	__u32 len; /* bits */
	__u8 name[NAME_BYTES];
};

#define NAME_MATCHES 8
#define NAME_GROUP_BYTES 8
#define NAME_HEADS 4

struct name_match {
	__u32 count;
	/* below a name's end: a bit for each of patterns that is a group; below what a group's
	 * patterns begin with: a byte for each of the at most NAME_HEADS patterns, the least
	 * characters that a name has which matches it, the first lowest */
	__u32 more;
	/* numbers of patterns: the key's own first, then those of shorter prefixes of it, the
	 * longest first */
	__u64 patterns[NAME_MATCHES];
};

/* map weir_name_sets: hash struct name_set_key -> __u64, a policy set: what the egress set `set`
 * says of an address that a name of the pattern led to, where it denies it otherwise. */
struct name_set_key {
	__u64 set;
	__u64 pattern;
};

/* map weir_name_pods: hash __u32 (a pod's interface) -> struct name_pod; pods with an egress set
 * that is in weir_name_sets, or that would have one if staged policies were in force */
struct name_pod {
	__u64 sets[2]; /* of its addresses of IPv4 and IPv6; 0 = none with names */
	__u64 staged[2]; /* the same of what it would have */
	__u32 extra; /* seconds that an address counts after its time to live */
	__u32 pad;
};

/* map weir_name_servers: hash struct name_addr -> __u8; whose answers count */
struct name_addr {
	__be32 addr[4];
};

/* map weir_names: hash struct named_key -> struct named_value; the addresses that a pod was told.
 * Written by programs; the agent removes what is over. */
struct named_key {
	__u32 ifindex; /* of the pod */
	__be32 addr[4];
};

struct named_slot {
	__u64 pattern; /* 0 = free */
	__u32 until; /* seconds of the monotonic clock */
	__u32 staged; /* staged policies alone have the pattern: it gives its place to any other */
};

#define NAMED_SLOTS 8

struct named_value {
	struct bpf_spin_lock lock; /* of slots */
	__u32 pad;
	struct named_slot slots[NAMED_SLOTS];
};

/* map weir_name_said: hash struct named_key -> struct name_said; what name a pod asked for that led
 * to an address, last; of pods with at most NAMED_EACH addresses. Policy does not look at it. */
struct name_said {
	__u32 until; /* seconds of the monotonic clock */
	__u32 len; /* of the name */
	__u8 name[NAME_BYTES]; /* in lower case, without the last dot */
};

/* map weir_name_used: hash __u32 (a pod's interface; 0 = all) -> __u32; entries of weir_names: as
 * the agent counted them, and begun since. While there are NAMED_FEW of all or more, no pod gets
 * more than NAMED_EACH; and none ever gets more than NAMED_MOST. Addresses for staged policies
 * alone take half of that at most. */
#define NAMED_EACH 1024
#define NAMED_FEW 65536
#define NAMED_MOST 32768

/* map weir_name_asked: LRU hash struct name_question -> __u32; questions of pods that have no
 * answer yet, and when they were asked, seconds of the monotonic clock */
struct name_question {
	__u32 ifindex;
	__be32 server[4];
	__be16 port; /* the pod's */
	__be16 id; /* of the message */
	__u32 proto;
};

/* map weir_name_reader: array of one struct name_reader, the agent that reads what programs cannot.
 * They send it packets, with the index of the pod's interface in the last four bytes of the
 * Ethernet source address, while it was there at most NAME_BEAT_NS ago and has fewer than
 * NAME_HANDED_MOST of them to read, and NAME_HANDED_EACH of the pod. */
struct name_reader {
	__u64 beat; /* nanoseconds of the monotonic clock: when it was there last */
	__u32 ifindex; /* of its device; 0 = there is none */
	__u32 done; /* what weir_name_handed was when it had read all, and packets read since */
};

#define NAME_BEAT_NS 1000000000
#define NAME_HANDED_MOST 256
#define NAME_HANDED_EACH 64

/* map weir_name_handed: array of one __u32, the packets that were sent to the agent */

/* map weir_name_waits: LRU hash __u32 (a pod's interface) -> struct name_waits; the pod's packets
 * that were sent to the agent since it had read all of them */
struct name_waits {
	__u32 last; /* what weir_name_handed was behind the last of them */
	__u32 count;
};

/* map weir_name_streams: LRU hash struct name_question, with ID 0 -> struct name_stream; TCP
 * connections by which DNS servers answer pods; and packets in fragments of which the first went to
 * the agent, with protocol IPPROTO_FRAGMENT and the packet's identification in port and id */
enum name_stream_state {
	NAME_STREAM_OPEN = 0, /* programs have read all of it */
	NAME_STREAM_HANDED = 1, /* the agent reads it */
	NAME_STREAM_LOST = 2, /* something of it went on unread */
};

struct name_stream {
	__u32 first; /* sequence number of the SYN */
	__u32 next; /* of the first byte that no program has read */
	__u32 state; /* enum name_stream_state */
};

/* map weir_name_counts: per-CPU array enum name_count -> __u64 */
enum name_count {
	NAMES_LEARNED = 0, /* answers of which addresses were noted */
	NAMES_UNASKED = 1, /* answers of trusted servers to no question of the pod */
	NAMES_UNTRUSTED = 2, /* answers of other servers */
	NAMES_UNREAD = 3, /* answers that could not be read, or not as a whole */
	NAMES_FULL = 4, /* addresses without room */
	NAME_COUNTS = 5,
};

#endif
