/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow_table.h: what an entry of the tables of flows means: its time-out, its direction, the key of
 * the entry of the other direction. */
#ifndef WEIR_FLOW_TABLE_H
#define WEIR_FLOW_TABLE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "clock.h"
#include "parse.h"
#include "reasons.h"

#define CLAIM_TRIES 3

static __always_inline __u32 flow_timeout(const struct settings *s, __u8 proto, __u8 state,
					  __u8 flags)
{
	switch (proto) {
	case IPPROTO_TCP:
	case IPPROTO_SCTP:
		if (state & STATE_CLOSING)
			return s->timeouts[state & STATE_RESET ? TIMEOUT_TCP_CLOSING :
								 TIMEOUT_TCP_FINS];
		if (!(state & STATE_REPLIED))
			return s->timeouts[TIMEOUT_TCP_SYN];
		return s->timeouts[proto == IPPROTO_TCP ? TIMEOUT_TCP_EST : TIMEOUT_OTHER];
	/* What nobody has answered ends soon; of what is handed on answers may not come by here. */
	case IPPROTO_UDP:
		if ((state & (STATE_REPLIED | STATE_ANSWERED)) || (flags & FLOW_HAND_ON))
			return s->timeouts[TIMEOUT_UDP];
		return s->timeouts[TIMEOUT_UDP] >> UNANSWERED_SHIFT;
	case IP_ICMP: return s->timeouts[TIMEOUT_ICMP];
	}
	return s->timeouts[TIMEOUT_OTHER];
}

static __always_inline int flow_expired(const struct flow_value *f, const struct settings *s,
					__u8 proto, __u32 now)
{
	return clock_past(now, f->seen, flow_timeout(s, proto, f->state, f->flags));
}

/* The key of the entry of the other direction. */
static __always_inline void flow_partner(struct flow_key *k, const struct flow_value *f, __u8 proto)
{
	k->saddr = f->daddr;
	k->daddr = f->saddr;
	k->sport = f->dport;
	k->dport = f->sport;
	k->proto = proto;
	k->pad[0] = k->pad[1] = k->pad[2] = 0;
}

/* Does the packet come from a pod, and from the one that the flow's packets come from; or neither
 * does? */
static __always_inline int flow_enters(const struct flow_value *f, const struct pkt *p,
				       __u32 ifindex)
{
	if (p->hook == HOOK_FROM_WORKLOAD)
		return FROM_IS_POD(f->from) && f->source.w[0] == ifindex;
	return !FROM_IS_POD(f->from);
}

/* Is f the entry of the other direction of the flow of p's key? The key may have gone to another
 * flow since. */
static __always_inline int flow_leads_back(const struct flow_value *f, const struct pkt *p)
{
	return addr_same(&f->saddr, &p->key.daddr) && addr_same(&f->daddr, &p->key.saddr) &&
	       f->sport == p->key.dport && f->dport == p->key.sport;
}

#endif
