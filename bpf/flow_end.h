/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow_end.h: taking away what ended flows left in the tables. */
#ifndef WEIR_FLOW_END_H
#define WEIR_FLOW_END_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "parse.h"
#include "flow_table.h"
#include "account.h"

/* Forgets what an ended flow of this key left in the table of established ones. */
static __always_inline void flow_forget(struct pkt *p, struct scratch *w)
{
	struct flow_value *f = bpf_map_lookup_elem(&weir_flows, &p->key);

	if (f) {
		account_gone(&p->key, f);
		flow_partner(&w->okey, f, p->key.proto);
		f = bpf_map_lookup_elem(&weir_flows, &w->okey);
		if (f && flow_leads_back(f, p)) {
			account_gone(&w->okey, f);
			bpf_map_delete_elem(&weir_flows, &w->okey);
		}
		bpf_map_delete_elem(&weir_flows, &p->key);
	}
}

/* Forgets a flow of this node, f, whichever table has it. */
static __noinline int flow_end(struct pkt *p, struct flow_value *f)
{
	struct scratch *w = scratch_get();

	if (!w || !p || !f)
		return 0;
	account_gone(&p->key, f);
	flow_partner(&w->okey, f, p->key.proto);
	f = bpf_map_lookup_elem(&weir_flows, &w->okey);
	if (f && flow_leads_back(f, p)) {
		account_gone(&w->okey, f);
		bpf_map_delete_elem(&weir_flows, &w->okey);
	}
	f = bpf_map_lookup_elem(&weir_flows_new, &w->okey);
	if (f && flow_leads_back(f, p)) {
		account_gone(&w->okey, f);
		bpf_map_delete_elem(&weir_flows_new, &w->okey);
	}
	bpf_map_delete_elem(&weir_flows, &p->key);
	bpf_map_delete_elem(&weir_flows_new, &p->key);
	return 0;
}

#endif
