/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow_fields.h: the fields of struct flow_value that are elsewhere without flow records. Then an
 * entry has none of theirs, and is FLOW_PLAIN_SIZE bytes: its Service and backend come where the
 * counters begin. Those of IPv4 fill a cache line so. User space makes the maps' values of that
 * size (object/flow_size.go), and scratch.fwd and .rev follow. */
#ifndef WEIR_FLOW_FIELDS_H
#define WEIR_FLOW_FIELDS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"

#define FLOW_PLAIN_SVC __builtin_offsetof(struct flow_value, count)
#define FLOW_PLAIN_BACKEND (FLOW_PLAIN_SVC + sizeof(struct svc_key))
#define FLOW_PLAIN_SIZE (FLOW_PLAIN_BACKEND + sizeof(struct backend))

_Static_assert(FLOW_PLAIN_SIZE == 64 + 6 * ADDR_MORE, "flow_value without flow records");

static __always_inline struct svc_key *flow_svc(const struct flow_value *f)
{
	return account_interval ? (struct svc_key *)&f->svc :
				  (struct svc_key *)((char *)f + FLOW_PLAIN_SVC);
}

static __always_inline struct backend *flow_backend(const struct flow_value *f)
{
	return account_interval ? (struct backend *)&f->backend :
				  (struct backend *)((char *)f + FLOW_PLAIN_BACKEND);
}

static __always_inline void flow_copy(struct flow_value *to, const struct flow_value *f)
{
	if (account_interval)
		*to = *f;
	else
		__builtin_memcpy(to, f, FLOW_PLAIN_SIZE);
}

static __always_inline void flow_clear(struct flow_value *f)
{
	if (account_interval)
		__builtin_memset(f, 0, sizeof(*f));
	else
		__builtin_memset(f, 0, FLOW_PLAIN_SIZE);
}

#endif
