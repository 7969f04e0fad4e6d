// SPDX-License-Identifier: Apache-2.0

// Package bpffs has what the driver does to pins on the BPF file system: a pin is the path of a
// map or link below /sys/fs/bpf/weir, and outlives the agent. An object takes the place of the one
// that is pinned at its path by a rename, so that at no moment there is none.
package bpffs
