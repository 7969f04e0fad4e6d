// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/reason"
)

// dropReasons is a table of internal/reason, by number.
func dropReasons() (string, error) {
	all := slices.Sorted(maps.Values(reason.All()))
	var page strings.Builder
	page.WriteString("Why a node dropped a packet: the label `reason` of `weir_dropped_packets_total`, and what `weir status` and `weir monitor`\n" +
		"print. [Troubleshooting](../guides/troubleshooting.md#policy) says what to do about the frequent ones. The table is\n" +
		"`bpf/reasons.h`; numbers are never reused.\n\n| reason | number | meaning |\n|---|---|---|\n")
	for _, r := range all {
		if r == reason.None {
			continue
		}
		text := r.Text()
		if r.Quiet() {
			text += "; pods send such packets by themselves, so `weir status` does not report it"
		}
		fmt.Fprintf(&page, "| `%s` | %d | %s |\n", r, uint32(r), cell(text))
	}
	return page.String(), nil
}
