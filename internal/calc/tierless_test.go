// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// tierless has a policy of each kind that has tiers, all of a tier that does not exist: for the
// pods of nginx, for every pod and for the node.
func tierless() *model.Cluster {
	c := hostFixture(model.Rule{Action: model.Deny})
	clear(c.Policies)
	for _, p := range []model.Policy{
		{Kind: model.KindCalicoNetworkPolicy, Name: model.Name{Namespace: "default", Name: "web"}, Subject: model.Selector{Namespace: "default", Pods: equals("app", "nginx")}},
		{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "all"}, Subject: model.Selector{Expression: "all()"}},
		{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "early"}, Subject: model.Selector{Expression: "all()"}, PreDNAT: true, ApplyOnForward: true},
		{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "untracked"}, Subject: model.Selector{Expression: "all()"}, DoNotTrack: true, ApplyOnForward: true},
	} {
		p.Tier, p.AppliesIngress, p.Ingress = "security", true, []model.Rule{{Action: model.Deny}}
		if !p.PreDNAT {
			p.AppliesEgress, p.Egress = true, []model.Rule{{Action: model.Deny}}
		}
		c.Policies[p.ID()] = &p
	}
	return c
}

// A tier that was deleted, or is not there yet, leaves its policies without effect: what is in
// force is what would be without them, for pods, for the node and for what staged policies would
// do. Other tiers are in force as before.
func TestHostileMissingTierCutsNobodyOff(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a tier that is gone cuts off all that its policies selected", hostile.Operator, hostile.ControlPlane, hostile.Both)
	free := hostFixture()
	clear(free.Policies)
	want := dump(t, Calc(free))
	c := tierless()
	if got := dump(t, Calc(c)); got != want {
		t.Errorf("policies of a tier that does not exist are in force:\n%s", difference(want, got))
	}
	for id, p := range c.Policies {
		staged := *p
		staged.Kind = "Staged" + strings.TrimSuffix(p.Kind, ".projectcalico.org")
		c.Staged[staged.ID()] = &model.StagedPolicy{Policy: staged}
		delete(c.Policies, id)
	}
	if got := dump(t, Calc(c)); got != want {
		t.Errorf("staged policies of a tier that does not exist change something:\n%s", difference(want, got))
	}
}

// The tier comes after its policies, and goes before them: they are in force while it is there.
func TestTierComesAndGoes(t *testing.T) {
	t.Parallel()
	c := tierless()
	k := New()
	without, _ := k.Update(c, model.AllDirty())
	var dirty Dirty
	dirty.Add(model.KindTiers)
	c.Tiers = map[string]*model.Tier{"security": {Name: "security", Order: 10}}
	with, _ := k.Update(c, dirty)
	if got, want := dump(t, with), dump(t, Calc(c)); got != want || got == dump(t, without) {
		t.Errorf("the tier has come, and its policies are not in force:\n%s", difference(want, got))
	}
	c.Tiers = nil
	if s, _ := k.Update(c, dirty); dump(t, s) != dump(t, without) {
		t.Errorf("the tier has gone, and its policies are still in force:\n%s", difference(dump(t, without), dump(t, s)))
	}
}

// difference are the lines of two dumps that only one of them has.
func difference(want, got string) string {
	var out strings.Builder
	has := map[string]bool{}
	for line := range strings.Lines(want) {
		has[line] = true
	}
	for line := range strings.Lines(got) {
		if !has[line] {
			out.WriteString("+ " + line)
		}
		delete(has, line)
	}
	for line := range has {
		out.WriteString("- " + line)
	}
	return out.String()
}

func dump(t *testing.T, s *nodestate.State) string {
	t.Helper()
	var out strings.Builder
	if err := nodestate.Dump(&out, s); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
