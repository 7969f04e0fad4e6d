#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Upstream's image has iperf 2.2. Where Debian's 2.1 writes a line of values, that has a line of names first, an interval
# as two values, and more values after the bandwidth. The figures are the same.
set -o pipefail
/usr/bin/iperf "$@" | sed -u -E \
	-e '1{/^[0-9.]+,/i time,srcaddress,srcport,dstaddr,dstport,transferid,istart,iend,bytes,speed,writecnt,writeerr,tcpretry,tcpcwnd,tcppcwnd,tcprtt,tcprttvar' -e '}' \
	-e 's/^(([^,]*,){6})([0-9.]+)-([0-9.]+),([0-9]+),([0-9]+)$/\1\3,\4,\5,\6,-1,-1,4294967295,-1,4294967295,0,0/'
