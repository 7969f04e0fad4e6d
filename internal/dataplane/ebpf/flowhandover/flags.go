// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// Marks are the marks of packets that programs respect.
var Marks = conntrack.Marks{Mask: abi.MarkMask, Seen: abi.MarkSeen, Done: abi.MarkDone}

// SettingsFlags are the flags of the settings to set and to clear.
func SettingsFlags(on, apart bool) (set, clear uint32) {
	clear = abi.SetHandOver | abi.SetApart
	if on {
		set |= abi.SetHandOver
	}
	if apart {
		set |= abi.SetApart
	}
	return set, clear &^ set
}
