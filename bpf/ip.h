/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* ip.h: the IP header of the family that the programs are compiled for. Comes with parse.h. */
#ifndef WEIR_IP_H
#define WEIR_IP_H

#include "parse.h"

#if WEIR_FAMILY == 6
#include "ip6.h"
#else
#include "ip4.h"
#endif

#endif
