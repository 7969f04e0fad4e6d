// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
)

// A node that cannot take IP in IP says so while its state has it, and at no other time.
func TestNoIPIP(t *testing.T) {
	t.Parallel()
	with := nodestate.New()
	with.Settings.IPIP.Accept = true
	for _, c := range []struct {
		why  string
		s    *nodestate.State
		says int
	}{{"no device", with, 1}, {"", with, 0}, {"no device", nodestate.New(), 0}, {"no device", nil, 0}} {
		if got := NoIPIP("n1", c.why, c.s); len(got) != c.says {
			t.Errorf("why %q: %v", c.why, got)
		}
	}
}
