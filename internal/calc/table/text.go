// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// PortText names a port of a protocol.
func PortText(n uint16, p model.Protocol) string {
	return strconv.Itoa(int(n)) + "/" + p.String()
}

// RuleText is the text that a rule's number is made from.
func RuleText(r nodestate.Rule) string {
	text := r.Kind + "\x00" + r.Name + "\x00" + r.Detail
	if r.Tier != "" {
		text += "\x00" + r.Tier
	}
	return text
}

// CompareNames orders names by namespace, then by name.
func CompareNames(a, b model.Name) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
