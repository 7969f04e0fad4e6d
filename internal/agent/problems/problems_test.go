// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Whoever reads a node's status sees what is wrong with the node, however many Services a tenant
// makes.
func TestHostileReports(t *testing.T) {
	hostile.Record(t, "a tenant's refused Services crowd the node's own problems out of its status", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	s := nodestate.New()
	refused := map[nodestate.Object][]nodestate.Refusal{}
	for i := range 3000 {
		o := nodestate.Object{Kind: "Service", Name: model.Name{Namespace: "team", Name: fmt.Sprintf("evil-%04d", i)}}
		refused[o] = []nodestate.Refusal{{Field: "spec.externalIPs", Value: "192.0.2.1", Message: "is allowed", Allowed: i < 2000}}
	}
	s.Refused = nodestate.MapOf(refused)
	own := []weirv1.Problem{{Object: "Node n1", Message: "no uplink"}}
	objects := append(Refusals(s), weirv1.Problem{Object: "IPPool default", Message: "overlaps"}, weirv1.Problem{Object: "Service other/web", Message: "is refused"})
	got := Shown("n1", own, objects)
	var names []string
	for _, p := range got {
		names = append(names, p.Object)
	}
	want := []string{"Node n1", "IPPool default", "Service team/evil-2000", "Service team/evil-2001", "Service team/evil-2002", "Service team/evil-2003", "Service team/evil-2004",
		"Service other/web", "Node n1"}
	if !slices.Equal(names, want) || !strings.Contains(got[len(got)-1].Message, "2995 more") {
		t.Errorf("%v; %v", names, got[len(got)-1])
	}
}

// Whatever tenants write into their objects, and however many namespaces have some, the status can
// be stored: etcd takes 1.5 MiB, and the API server keeps each NodeStatus for every watcher.
func TestHostileLongReports(t *testing.T) {
	hostile.Record(t, "long annotations of a tenant's Services keep every NodeStatus from being written", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, namespaces := range []int{1, 100} {
		var objects []weirv1.Problem
		for i := range 200 {
			name := fmt.Sprintf("Service team-%d/evil-%d", i%namespaces, i)
			objects = append(objects, weirv1.Problem{Object: name, Field: strings.Repeat("<", 250_000), Value: strings.Repeat("<", 250_000), Message: "is refused", Action: "correct it"})
		}
		status := weirv1.NodeStatusStatus{Problems: Shown("n1", []weirv1.Problem{{Object: "Node n1", Message: "no uplink"}}, objects)}
		text, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 64<<10 {
			t.Errorf("%d namespaces: a status of %d bytes", namespaces, len(text))
		}
		if n := len(status.Problems); n < 7 || status.Problems[0].Message != "no uplink" || status.Problems[1].Object != "Service team-0/evil-0" {
			t.Errorf("%d namespaces: %d problems", namespaces, n)
		}
	}
}
