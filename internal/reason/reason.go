// SPDX-License-Identifier: Apache-2.0

// Package reason names why a packet was dropped. The table is bpf/reasons.h; the Go names are
// generated from it.
package reason

import "strconv"

//go:generate go run ../../hack/gen-reasons ../../bpf/reasons.h names.go

// Reason is a number of enum drop_reason.
type Reason uint32

// String returns the name as it is written in bpf/reasons.h, or the number of a reason that is not
// there.
func (r Reason) String() string {
	if n, ok := names[r]; ok {
		return n
	}
	return "REASON_" + strconv.FormatUint(uint64(r), 10)
}

// Text says in words why the packet was dropped.
func (r Reason) Text() string {
	if t, ok := texts[r]; ok {
		return t
	}
	return "unknown reason " + strconv.FormatUint(uint64(r), 10)
}

// All returns every reason by its name, the one for "not dropped" included.
func All() map[string]Reason {
	all := make(map[string]Reason, len(names))
	for r, n := range names {
		all[n] = r
	}
	return all
}
