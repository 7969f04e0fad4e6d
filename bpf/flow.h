/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow.h: finding, beginning, evaluating again and ending flows, a header each. */
#ifndef WEIR_FLOW_H
#define WEIR_FLOW_H

#include "flow_table.h"
#include "flow_port.h"
#include "flow_end.h"
#include "flow_balance.h"
#include "flow_enter.h"
#include "flow_begin.h"
#include "flow_revalidate.h"
#include "flow_state.h"

#endif
