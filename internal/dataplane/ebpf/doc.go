// SPDX-License-Identifier: Apache-2.0

// Package ebpf is the driver that carries a node's state in eBPF maps and programs. Maps, and the
// links that attach the programs, are pinned below bpffs, so that a stopped or replaced agent costs
// no packet. The driver opens programs and maps (package object), applies states to them (tables)
// and attaches (attach), in an order by which no packet is allowed that should not be; it repairs
// what others break, imports connections of another data plane, and reports.
package ebpf
