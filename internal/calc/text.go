// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// portText names a port of a protocol.
func portText(n uint16, p model.Protocol) string {
	return strconv.Itoa(int(n)) + "/" + p.String()
}

// ruleText is the text that a rule's number is made from.
func ruleText(r nodestate.Rule) string {
	text := r.Kind + "\x00" + r.Name + "\x00" + r.Detail
	if r.Tier != "" {
		text += "\x00" + r.Tier
	}
	return text
}

// compareNames orders names by namespace, then by name.
func compareNames(a, b model.Name) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
