// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* abi_enums.c: what of the headers of the ABI is a number and no type. It is compiled for its BTF
 * alone, from which hack/gen-abi writes internal/dataplane/ebpf/abi/enums.go: a type is in BTF
 * where something has it. No program is made of it. */
#include <linux/bpf.h>
#include "abi.h"

/* The macros that user space needs. */
enum abi_macros {
	NUMBER = WEIR_ABI,
	MARK_MASK_ = MARK_MASK,
	MARK_DONE_ = MARK_DONE,
	MARK_AGAIN_ = MARK_AGAIN,
	MARK_AGAIN_INNER_ = MARK_AGAIN_INNER,
	MARK_OWN_ = MARK_OWN,
	MARK_SEEN_ = MARK_SEEN,
	MARK_QUEUED_ = MARK_QUEUED,
	MARK_READ_ = MARK_READ,
	GATEWAYS_ = GATEWAYS,
	PORT_WORDS_ = PORT_WORDS,
	SOCK_ASKED_ = SOCK_ASKED,
	UNANSWERED_SHIFT_ = UNANSWERED_SHIFT,
	NAME_BYTES_ = NAME_BYTES,
	NAME_MATCHES_ = NAME_MATCHES,
	NAME_GROUP_BYTES_ = NAME_GROUP_BYTES,
	NAME_HEADS_ = NAME_HEADS,
	NAMED_SLOTS_ = NAMED_SLOTS,
	NAMED_EACH_ = NAMED_EACH,
	NAMED_FEW_ = NAMED_FEW,
	NAMED_MOST_ = NAMED_MOST,
	NAME_HANDED_MOST_ = NAME_HANDED_MOST,
	NAME_HANDED_EACH_ = NAME_HANDED_EACH,
};

struct abi_enums {
	enum abi_macros macros;
	enum account_flag account_flag;
	enum addr_kind addr_kind;
	enum addr_flag addr_flag;
	enum answer answer;
	enum count count;
	enum event_flag event_flag;
	enum event_staged event_staged;
	enum flow_action flow_action;
	enum flow_flag flow_flag;
	enum flow_from flow_from;
	enum flow_state flow_state;
	enum host_flag host_flag;
	enum host_set host_set;
	enum live_list live_list;
	enum policy_proto policy_proto;
	enum record_end record_end;
	enum policy_verdict policy_verdict;
	enum port_bit port_bit;
	enum port_shift port_shift;
	enum route_flag route_flag;
	enum settings_flag settings_flag;
	enum slot_flag slot_flag;
	enum svc_flag svc_flag;
	enum svc_scope svc_scope;
	enum timeout timeout;
	enum name_count name_count;
	enum limit_direction limit_direction;
	enum limited_slot limited_slot;
	enum departure_flag departure_flag;
	enum name_stream_state name_stream_state;
};

struct abi_enums abi_enums;
