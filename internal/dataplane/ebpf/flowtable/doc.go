// SPDX-License-Identifier: Apache-2.0

// Package flowtable reads and cleans the tables that programs fill: connections, affinities and
// sockets. Programs look at time-outs when they meet an entry, so a TableGC walks each table in
// small batches, removes what is expired and counts what is left, also by pod (Quotas, the shares
// of bpf/quota.h). It knows the programs' clock, time-outs and the layout that a map's BTF says.
// When to walk and at what cost is the driver's to say.
package flowtable
