/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* weir.c: all programs in one object. */
#include "workload.c"
#include "host.c"
#include "limited.c"
#include "overlay.c"
#include "ipip.c"
#include "names.c"
#include "sock.c"
#include "xdp.c"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
