// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// What is not in force because its tier is gone is a problem of the node, which makes `weir status`
// end with an error.
func TestHostileMissingTierIsSaid(t *testing.T) {
	hostile.Record(t, "a deleted tier leaves its policies without effect unnoticed", hostile.Operator, hostile.ControlPlane, hostile.Both)
	c := newCluster("n1", nil, config.New("n1", nil, nil), slog.New(slog.DiscardHandler))
	gate := &model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "gate"}, Tier: "security"}
	web := &model.Policy{Kind: model.KindCalicoNetworkPolicy, Name: model.Name{Namespace: "shop", Name: "web"}, Tier: model.TierDefault}
	trial := &model.StagedPolicy{Policy: model.Policy{Kind: model.KindStagedGlobalNetworkPolicy, Name: model.Name{Name: "trial"}, Tier: "security"}}
	said := func(b *watch.Batch) string {
		c.merge(b)
		var out []string
		for _, p := range c.snapshot().tierless {
			out = append(out, p.String())
		}
		return strings.Join(out, "\n")
	}
	before := said(&watch.Batch{Full: true, Changes: model.Changes{Policies: map[model.PolicyID]*model.Policy{gate.ID(): gate, web.ID(): web},
		Staged: map[model.PolicyID]*model.StagedPolicy{trial.Policy.ID(): trial}}})
	if !strings.Contains(before, `GlobalNetworkPolicy gate spec.tier = "security": there is no such tier`) || !strings.Contains(before, "StagedGlobalNetworkPolicy trial") ||
		strings.Contains(before, "web") {
		t.Errorf("without the tier: %s", before)
	}
	if now := said(&watch.Batch{Changes: model.Changes{Tiers: map[string]*model.Tier{"security": {Name: "security"}}}}); now != "" {
		t.Errorf("with the tier: %s", now)
	}
	if now := said(&watch.Batch{Changes: model.Changes{Tiers: map[string]*model.Tier{"security": nil}}}); now != before {
		t.Errorf("when the tier is gone again: %s", now)
	}
}
