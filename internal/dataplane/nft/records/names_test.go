// SPDX-License-Identifier: Apache-2.0

package records

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/events"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestNames holds that a record has the pattern of domain names that allows the flow: one that led
// the pod to the address, or by which the connection began and that counts no more; and that staged
// policies are asked with these names.
func TestNames(t *testing.T) {
	t.Parallel()
	const set, byName, pattern, rule, connection, staged, stagedRule = 3, 4, 77, 9, 1234, 5, 10
	pod, to := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("192.0.2.1")
	s := nodestate.New()
	s.Addrs[pod] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "pod0", IfIndex: 7, Egress: nodestate.Isolation{Set: set, Rule: 8}}
	s.Policy.Set(nodestate.PolicyKey{Set: byName, Head: true}, nodestate.PolicyValue{Allow: true, Rule: rule})
	s.Names.Sets[nodestate.NameKey{Set: set, Name: pattern}] = byName
	s.Staged[pod] = nodestate.StagedIsolation{Egress: nodestate.Isolation{Set: staged, Rule: stagedRule}}
	s.Names.Sets[nodestate.NameKey{Set: staged, Name: pattern}] = byName
	there := conntrack.Tuple{Src: pod, Dst: to, SrcPort: 40000, DstPort: 443, Proto: unix.IPPROTO_TCP}
	a := conntrack.Accounted{Entry: conntrack.Entry{Orig: there, Reply: there.Reversed()}, ID: connection}
	for name, c := range map[string]struct {
		told, began bool
		by          nodestate.NameID
		rule        nodestate.RuleID
	}{"nobody": {rule: 8}, "told": {told: true, by: pattern, rule: rule}, "began": {began: true, by: pattern, rule: rule}} {
		v := events.NewView(s, 0, false)
		v.Named = func(ifindex int, at netip.Addr) []dataplane.NamedBy {
			if !c.told || ifindex != 7 || at != to {
				return nil
			}
			return []dataplane.NamedBy{{Name: pattern}}
		}
		v.Began = func(id uint32) nodestate.NameID {
			if !c.began || id != connection {
				return 0
			}
			return pattern
		}
		v.Asked = func(ifindex int, at netip.Addr) string {
			if ifindex != 7 || at != to {
				return ""
			}
			return "a.test"
		}
		out, back, is := recordsOf(v, a, time.Time{}, time.Now())
		if !is || out.Name != c.by || out.Egress.Rule != c.rule || back.Name != 0 {
			t.Errorf("%s: name %d by rule %d (%v), answers %d", name, out.Name, out.Egress.Rule, is, back.Name)
		}
		if out.AskedName != "a.test" || back.AskedName != "" {
			t.Errorf("%s: asked as %q, answers %q", name, out.AskedName, back.AskedName)
		}
		if denied := c.by == 0; !out.Egress.Staged || out.Egress.StagedDenied != denied || denied && out.Egress.StagedRule != stagedRule {
			t.Errorf("%s: staged %+v", name, out.Egress)
		}
	}
}
