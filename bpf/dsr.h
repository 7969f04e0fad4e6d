/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* dsr.h: direct server return. Which answers to outside clients go straight to them. */
#ifndef WEIR_DSR_H
#define WEIR_DSR_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "clock.h"
#include "parse.h"

/* Handshakes in a row that a client left unanswered, each from another port, until its next one
 * goes by the tunnel. */
#define DSR_TRIES 2

/* Does the service want it? Its own flags win over the setting. */
static __always_inline int dsr_wanted(const struct settings *s, const struct svc_value *v)
{
	if (v->flags & (SVC_MODE_TUNNEL | SVC_MODE_DSR))
		return v->flags & SVC_MODE_DSR;
	return s->flags & SET_DSR;
}

/* Is the client one whose answers never go straight to it? */
static __always_inline int dsr_refused(const ip_addr *client)
{
	struct prefix_key key = { .len = ADDR_BITS, .addr = *client };

	return bpf_map_lookup_elem(&weir_dsr_optout, &key) != NULL;
}

/* From now on the client gets its answers by the node that it asked. */
static __always_inline void dsr_fall(const ip_addr *client, __u32 now)
{
	struct dsr_fallen fallen = { .since = now };
	__u32 at = COUNT_DSR_FALLEN;
	__u64 *count = bpf_map_lookup_elem(&weir_counts, &at);

	bpf_map_update_elem(&weir_dsr_fallen, client, &fallen, BPF_ANY);
	bpf_map_delete_elem(&weir_dsr_tries, client);
	if (count)
		(*count)++;
}

/* Did straight answers not arrive at the client lately? A client may give up before it repeats a
 * SYN, and try again from another port: then its handshakes are counted. */
static __always_inline int dsr_failed(const struct pkt *p, const struct settings *s)
{
	struct dsr_fallen *f = bpf_map_lookup_elem(&weir_dsr_fallen, &p->key.saddr);
	struct dsr_tries *t;
	__u32 now = clock_now();

	if (f && !clock_past(now, f->since, s->timeouts[TIMEOUT_DSR_RETRY]))
		return 1;
	if (!parse_connects(p))
		return 0;
	t = bpf_map_lookup_elem(&weir_dsr_tries, &p->key.saddr);
	if (!t || t->count < DSR_TRIES ||
	    clock_past(now, t->seen, s->timeouts[TIMEOUT_DSR_TRIES]) ||
	    (__u16)(clock_fine() - t->since) < s->dsr_patience)
		return 0;
	dsr_fall(&p->key.saddr, now);
	return 1;
}

/* The backend's answer goes straight to the client. */
static __always_inline void dsr_try(const ip_addr *client, const struct settings *s, __u16 fine)
{
	struct dsr_tries *t = bpf_map_lookup_elem(&weir_dsr_tries, client);
	struct dsr_tries first = { .seen = clock_now(), .since = fine, .count = 1 };

	if (t && !clock_past(first.seen, t->seen, s->timeouts[TIMEOUT_DSR_TRIES])) {
		t->seen = first.seen;
		if (t->count < 0xffff)
			t->count++;
		return;
	}
	bpf_map_update_elem(&weir_dsr_tries, client, &first, BPF_ANY);
}

#endif
