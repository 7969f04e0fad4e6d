// SPDX-License-Identifier: Apache-2.0

// Package conntrack reads and writes the kernel's table of tracked connections (ctnetlink,
// linux/netfilter/nfnetlink_conntrack.h), and holds back what begins while one data plane takes
// over from another (Hold).
package conntrack
