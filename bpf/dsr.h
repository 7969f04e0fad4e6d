/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* dsr.h: direct server return. Which answers to outside clients go straight to them. */
#ifndef WEIR_DSR_H
#define WEIR_DSR_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"

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

#endif
