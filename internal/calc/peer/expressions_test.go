// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// A pod's own labels do not replace those of its namespace and its service account.
func TestLabelsOfOthersAreNotOwn(t *testing.T) {
	t.Parallel()
	c := model.NewCluster()
	c.Namespaces["ns"] = &model.Namespace{Name: "ns", Labels: map[string]string{"env": "test"}}
	p := &model.Pod{Name: model.Name{Namespace: "ns", Name: "p"}, ServiceAccount: "sa",
		Labels: map[string]string{"app": "web", "pcns.env": "prod", "pcns.team": "red", "pcsa.role": "admin"}}
	s := &model.NetworkSet{Name: model.Name{Namespace: "ns", Name: "s"}, Labels: p.Labels}
	for what, of := range map[string]Labels{"pod": PodLabels(cluster.ViewOf(c), p), "network set": SetLabels(cluster.ViewOf(c), s)} {
		for key, want := range map[string]string{"app": "web", "pcns.env": "test", "pcns.team": "", "pcsa.role": ""} {
			if got, ok := of(key); got != want || ok != (want != "") {
				t.Errorf("%s: %s is %q %v, want %q", what, key, got, ok, want)
			}
		}
	}
}
