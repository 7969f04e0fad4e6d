// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/model"
)

const there = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: shop}}
- {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, status: {podIPs: [{ip: 10.0.0.1}]}}
- {apiVersion: v1, kind: Node, metadata: {name: n1}}
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: shop}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: other, namespace: shop}}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4}
- {apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.0.0.0/16}}
- {apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h}, spec: {node: n1, interfaceName: eth0}}
- {apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: sec}, spec: {order: 10}}
- {apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: one, namespace: shop}, spec: {selector: all()}}
- {apiVersion: projectcalico.org/v3, kind: StagedNetworkPolicy, metadata: {name: staged, namespace: shop}, spec: {selector: all()}}
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: two, namespace: shop, creationTimestamp: "2020-01-01T00:00:00Z"}, spec: {podSelector: {}}}
`

func cluster(t *testing.T) *Cluster {
	t.Helper()
	all, err := deploy.Parse([]byte(there))
	if err != nil {
		t.Fatal(err)
	}
	c, err := FromObjects(all)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func policiesOf(c *model.Cluster) (out []string) {
	for id, p := range c.Policies {
		out = append(out, id.Kind+" "+id.Name.String()+" "+p.Kind)
	}
	slices.Sort(out)
	return out
}

// What is applied and deleted is in the model of the change, and not in that of the cluster.
func TestChange(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	now := c.Now()
	if now.Pods.Len() != 1 || len(now.Namespaces) != 1 || len(now.Nodes) != 1 || len(now.Slices) != 1 || len(now.Pools) != 1 || len(now.HostEndpoints) != 1 || len(now.Tiers) != 1 || len(now.ServiceAccounts) != 1 {
		t.Errorf("%+v", now)
	}
	before := []string{"NetworkPolicy shop/two NetworkPolicy", "NetworkPolicy.projectcalico.org shop/one NetworkPolicy.projectcalico.org"}
	if got := policiesOf(now); !slices.Equal(got, before) {
		t.Errorf("%q", got)
	}
	x := c.Try()
	all, err := Parse("f", []byte(`
{apiVersion: projectcalico.org/v3, kind: StagedNetworkPolicy, metadata: {name: one}, spec: {selector: all(), types: [Egress]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: two}, spec: {podSelector: {matchLabels: {app: web}}}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: set, namespace: none}, spec: {nets: [192.0.2.0/24]}}`), "shop")
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range all {
		if problems, err := x.Apply(u); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
	}
	if err := x.Delete("tier/sec", "shop"); err != nil {
		t.Error(err)
	}
	after := x.Model()
	want := []string{"NetworkPolicy shop/two NetworkPolicy", "NetworkPolicy.projectcalico.org shop/one StagedNetworkPolicy"}
	if got := policiesOf(after); !slices.Equal(got, want) {
		t.Errorf("a staged policy of a file is not tried in its place: %q", got)
	}
	two := after.Policies[model.PolicyID{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: "shop", Name: "two"}}]
	if len(two.Subject.Pods.Requirements) != 1 || two.Created == 0 || len(after.Tiers) != 0 || len(after.NetworkSets) != 1 {
		t.Errorf("%+v; %v, %v", two, after.Tiers, after.NetworkSets)
	}
	if got := policiesOf(c.Now()); !slices.Equal(got, before) || len(c.Now().Tiers) != 1 {
		t.Errorf("the cluster changed: %q", got)
	}
}

// Deletions name what is there.
func TestDelete(t *testing.T) {
	t.Parallel()
	for what, wrong := range map[string]string{
		"networkpolicy/one": "", "netpol/two": "", "networkpolicies.projectcalico.org/shop/one": "", "NetworkPolicy.networking.k8s.io/shop/two": "", "snp/staged": "",
		"networkpolicy/three": "there is none", "networkpolicy/other/one": "there is none", "two": "want kind/name", "pod/web": "none of the kinds",
		"tier/shop/sec": "in no namespace", "networkpolicy.networking.k8s.io/one": "there is none",
	} {
		err := cluster(t).Try().Delete(what, "shop")
		if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%s: %v, want %q", what, err, wrong)
		}
	}
	x := cluster(t).Try()
	all, err := Parse("f", []byte(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: two, namespace: shop}, spec: {podSelector: {}}}`), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Apply(all[0]); err != nil {
		t.Fatal(err)
	}
	if err := x.Delete("networkpolicy/two", "shop"); err == nil {
		t.Error("what a file applies is deleted")
	}
}

// What is no policy, or has fields that there are not, is an error that says what; what agents do
// not enforce as it is written is a problem.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	for text, wrong := range map[string]string{
		`{apiVersion: v1, kind: Pod, metadata: {name: x}}`:                                                                                 "cannot be tried",
		`{apiVersion: networking.k8s.io/v1beta1, kind: NetworkPolicy, metadata: {name: x}}`:                                                "want networking.k8s.io/v1",
		`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {}, spec: {}}`:                                                  "no metadata.name",
		`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x}, spec: {podSelektor: {}}}`:                            "podSelektor",
		`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x}, spec: {podSelector: 5}}`:                             "NetworkPolicy shop/x",
		`{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: x}, spec: {ingress: [{action: Allow, from: {}}]}}`: "from",
		``:     "no object",
		`a: b`: "no kind",
	} {
		if _, err := Parse("f.yaml", []byte(text), "shop"); err == nil || !strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), "f.yaml") {
			t.Errorf("%s: %v, want %q", text, err, wrong)
		}
	}
	x := cluster(t).Try()
	all, err := Parse("f", []byte(`{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: x, namespace: shop}, spec: {selector: "app =="}}`), "")
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := x.Apply(all[0]); err != nil || len(problems) != 1 || problems[0].Field != "spec.selector" {
		t.Errorf("%v %v", problems, err)
	}
	all[0].SetNamespace("gone")
	if _, err := x.Apply(all[0]); err == nil || !strings.Contains(err.Error(), "no namespace gone") {
		t.Error(err)
	}
}
