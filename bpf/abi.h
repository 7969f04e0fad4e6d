/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* abi.h: what crosses the boundary between the programs and user space: map keys, map values, and
 * the numbers in them. The Go types are generated from these (bpf2go). Addresses and ports are in
 * network byte order unless a comment says otherwise. Raise WEIR_ABI when a layout changes: maps
 * are pinned below a folder of that number. */
#ifndef WEIR_ABI_H
#define WEIR_ABI_H

#include <linux/types.h>
#include "addr.h"

#define WEIR_ABI 7

/* Bits of skb->mark that Weir uses; the rest belong to others. */
#define MARK_MASK 0x0ff00000u
#define MARK_DONE 0x0ba00000u /* evaluated and routed by a Weir program on this node */
#define MARK_AGAIN 0x0bb00000u /* a fragment that was kept, on its second way in */
/* The same, of one that came in IP in IP and was unpacked before. */
#define MARK_AGAIN_INNER 0x0b900000u
#define MARK_OWN 0x0be00000u /* of a socket of the agent's own, towards the API server */
/* Sent by a pod whose egress is limited: it has waited for its turn. */
#define MARK_QUEUED 0x0bd00000u
/* Translated by a Weir program for a process of this node, while SET_APART says so. */
#define MARK_SEEN 0x0bc00000u
/* From a DNS server to a pod: the agent has read it, and sends it on to the pod's interface. */
#define MARK_READ 0x0b800000u

#include "abi_tables.h"
#include "abi_flow.h"
#include "abi_settings.h"
#include "abi_events.h"
#include "abi_names.h"
#include "abi_limits.h"

/* What a structure grows by for each address that it holds. */
#define ADDR_MORE ((ADDR_WORDS - 1) * 4)

_Static_assert(sizeof(ip_addr) == 4 + ADDR_MORE && _Alignof(ip_addr) == 4, "ip_addr");
_Static_assert(sizeof(struct addr_value) == (40 + ADDR_MORE + 7) / 8 * 8, "addr_value");
_Static_assert(sizeof(struct source_key) == 12 + ADDR_MORE, "source_key");
_Static_assert(sizeof(struct gateway_key) == 12 + ADDR_MORE, "gateway_key");
_Static_assert(sizeof(struct egress_key) == 16 + ADDR_MORE, "egress_key");
_Static_assert(sizeof(struct gateway_list) == 36 + 8 * ADDR_MORE, "gateway_list");
_Static_assert(sizeof(struct svc_key) == 8 + ADDR_MORE, "svc_key");
_Static_assert(sizeof(struct backend_key) == 12 + ADDR_MORE, "backend_key");
_Static_assert(sizeof(struct live_key) == 16 + 2 * ADDR_MORE, "live_key");
_Static_assert(sizeof(struct affinity_key) == 20 + 2 * ADDR_MORE, "affinity_key");
_Static_assert(sizeof(struct sock_key) == 16 + ADDR_MORE, "sock_key");
_Static_assert(sizeof(struct sock_stream) == 24 + 2 * ADDR_MORE, "sock_stream");
_Static_assert(sizeof(struct policy_key) == 24, "policy_key");
_Static_assert(sizeof(struct policy_value) == 12, "policy_value");
_Static_assert(sizeof(struct staged_value) == 24, "staged_value");
_Static_assert(sizeof(struct event) == 100, "event");
_Static_assert(sizeof(struct host_value) == 128, "host_value");
_Static_assert(sizeof(struct flow_key) == 16 + 2 * ADDR_MORE, "flow_key");
_Static_assert(sizeof(struct flow_value) == (128 + 7 * ADDR_MORE + 7) / 8 * 8, "flow_value");
_Static_assert(__builtin_offsetof(struct flow_value, svc) == 64 + 4 * ADDR_MORE,
	       "flow_value: what each packet needs");
_Static_assert(sizeof(struct name_key) == 260, "name_key");
_Static_assert(sizeof(struct named_key) == 20, "named_key");
_Static_assert(sizeof(struct named_value) == 136, "named_value");
_Static_assert(sizeof(struct name_question) == 28, "name_question");
_Static_assert(sizeof(struct name_said) == 264, "name_said");
_Static_assert(sizeof(struct name_reader) == 16, "name_reader");
_Static_assert(sizeof(struct flow_record) == 204, "flow_record");
_Static_assert(sizeof(struct settings) == (96 + ADDR_MORE + 7) / 8 * 8, "settings");

#endif
