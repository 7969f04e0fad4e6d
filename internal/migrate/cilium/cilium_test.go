// SPDX-License-Identifier: Apache-2.0

package cilium

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/migrate/plan"
	"github.com/weir-net/weir/internal/migrate/plan/plantest"
)

// planned is the plan of the recorded cluster, of which a text is another one.
func planned(t *testing.T, old, with string) *plan.Plan {
	t.Helper()
	c, err := FromObjects(plantest.Objects(t, old, with))
	if err != nil {
		t.Fatal(err)
	}
	return New(c)
}

const config = "ConfigMap kube-system/cilium-config"

// TestPlan: these are all findings of the recorded cluster, and no others.
func TestPlan(t *testing.T) {
	p := planned(t, "", "")
	if p.Stopped() || p.Version != "v1.18.2" || len(p.Nodes) != 1 || p.Nodes[0].Pods != 1 || p.Nodes[0].Networks[0] != "10.0.0.0/24" {
		t.Fatalf("%+v", p)
	}
	const policy, nodes = "CiliumNetworkPolicy shop/api", "CiliumClusterwideNetworkPolicy nodes"
	want := []string{
		config + " data.bpf-lb-mode", config + " data.enable-bgp-control-plane", config + " data.tunnel-port",
		policy + " ", policy + " spec.enableDefaultDeny", policy + " spec.ingress[0].authentication", policy + " spec.ingress[0].toPorts[0].rules.http",
		policy + " spec.ingress[1].fromEntities", policy + " spec.ingress[1].fromEntities", policy + " spec.egress[0].toFQDNs",
		policy + " spec.egress[1].toCIDRSet[0].cidrGroupRef", policy + " spec.egress[1].toPorts[0].serverNames", policy + " spec.egress[2].toPorts[0].rules.dns",
		nodes + " ", nodes + " specs[0].nodeSelector", nodes + " specs[0].ingressDeny", nodes + " specs[0].ingressDeny[0].fromRequires",
		"CiliumCIDRGroup partners ", "CiliumNewKind new ",
	}
	var got []string
	for _, f := range p.Findings {
		got = append(got, f.Object+" "+f.Field)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	of := map[string]map[string]any{}
	for _, u := range p.Objects {
		of[u.GetKind()], _, _ = unstructured.NestedMap(u.Object, "spec")
	}
	if s := of["IPPool"]; len(p.Objects) != 2 || s["cidr"] != "10.0.0.0/8" || s["vxlanMode"] != "Always" || s["natOutgoing"] != true {
		t.Errorf("the pool: %v", s)
	}
	if s := of["FelixConfiguration"]; s["wireguardEnabled"] != true || s["vxlanMTU"] != int64(1450) {
		t.Errorf("settings: %v", s)
	}
}

// TestSettings: what another cluster has, and what stops a migration.
func TestSettings(t *testing.T) {
	for _, c := range []struct {
		old, with, object, field string
		stops                    bool
	}{
		{"name: cilium, namespace", "name: another, namespace", "DaemonSet cilium", "", true},
		{"name: cilium-config", "name: another", "ConfigMap cilium-config", "", true},
		{"ipam: cluster-pool", "ipam: eni", config, "data.ipam", true},
		{"cni-chaining-mode: none", "cni-chaining-mode: aws-cni", config, "data.cni-chaining-mode", true},
		{"cluster-pool-ipv4-cidr: 10.0.0.0/8", "cluster-pool-ipv4-cidr: here", config, "data.cluster-pool-ipv4-cidr", true},
		{`kube-proxy-replacement: "true"`, `kube-proxy-replacement: "false"`, config, "data.kube-proxy-replacement", false},
		{`enable-ipsec: "false"`, `enable-ipsec: "true"`, config, "data.enable-ipsec", false},
		{`cluster-id: "0"`, `cluster-id: "3"`, config, "data.cluster-id", false},
		{"routing-mode: tunnel", "routing-mode: native", config, "data.routing-mode", false},
		{"enable-policy: default", "enable-policy: always", config, "data.enable-policy", false},
		{"identity-allocation-mode: crd", "identity-allocation-mode: kvstore", config, "data.identity-allocation-mode", false},
	} {
		p := planned(t, c.old, c.with)
		if f := plantest.Find(p, c.object, c.field); f == nil || f.Stops != c.stops || p.Stopped() != c.stops {
			t.Errorf("%s: %+v of %+v", c.with, f, p.Findings)
		}
	}
	if s := planned(t, "routing-mode: tunnel", "routing-mode: native").Objects[1].Object["spec"].(map[string]any); s["vxlanMode"] != "Never" {
		t.Errorf("the pool of a cluster without a tunnel: %v", s)
	}
	for _, k := range Kinds() {
		if k.Resource == "" || k.Version == "" {
			t.Errorf("%+v", k)
		}
	}
}
