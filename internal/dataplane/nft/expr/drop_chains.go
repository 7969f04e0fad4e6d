// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// denyPrefix begins the names of chains that drop: deny-<reason>-<rule>. Their first rule counts.
// Those that answer nobody, where others of that name do, end in SilentSuffix.
const (
	denyPrefix   = "deny-"
	SilentSuffix = "-silent"
)

// DenyChain reads the name of a chain that drops.
func DenyChain(name string) (reason.Reason, nodestate.RuleID, bool) {
	rest, ok := strings.CutPrefix(strings.TrimSuffix(name, SilentSuffix), denyPrefix)
	why, rule, ok2 := strings.Cut(rest, "-")
	y, err := strconv.ParseUint(why, 10, 32)
	n, err2 := strconv.ParseUint(rule, 10, 32)
	return reason.Reason(y), nodestate.RuleID(n), ok && ok2 && err == nil && err2 == nil
}

// DenyName is the name of a chain that drops; DenyChain reads it.
func DenyName(why reason.Reason, rule nodestate.RuleID) string {
	return fmt.Sprintf("%s%d-%d", denyPrefix, why, rule)
}

// PriorityText is a pair of numbers as nft writes a packet's priority.
func PriorityText(set, class uint16) string {
	if set == 0 && class == 0 {
		return "none"
	}
	return fmt.Sprintf("%x:%x", set, class)
}
