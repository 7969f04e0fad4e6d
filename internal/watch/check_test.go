// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/internal/model"
)

func TestCheckNamesTheField(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, x := range []struct{ text, field string }{
		{`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, spec: {policyTypes: [Both]}}`, "spec.policyTypes[0]"},
		{`{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, spec: {selector: "a = b"}}`, "spec.selector"},
		{`{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, spec: {ingress: [{action: Allow, http: {methods: [GET]}}]}}`, "spec.ingress[0].http"},
		{`{apiVersion: projectcalico.org/v3, kind: StagedNetworkPolicy, spec: {serviceAccountSelector: "("}}`, "spec.serviceAccountSelector"},
		{`{apiVersion: projectcalico.org/v3, kind: StagedGlobalNetworkPolicy, spec: {namespaceSelector: "("}}`, "spec.namespaceSelector"},
		{`{apiVersion: projectcalico.org/v3, kind: StagedKubernetesNetworkPolicy, spec: {policyTypes: [Both]}}`, "spec.policyTypes[0]"},
		{`{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, spec: {tier: Third, priority: 1, subject: {namespaces: {}}}}`, "spec.tier"},
		{`{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, spec: {priority: 1, subject: {namespaces: {}}, egress: [{action: Accept, to: [{nodes: {}}]}]}}`, "spec.egress[0].action"},
		{`{apiVersion: policy.networking.k8s.io/v1alpha1, kind: BaselineAdminNetworkPolicy, spec: {subject: {namespaces: {}}, ingress: [{action: Pass, from: [{namespaces: {}}]}]}}`, "spec.ingress[0].action"},
		{`{apiVersion: projectcalico.org/v3, kind: Tier, spec: {defaultAction: Log}}`, "spec.defaultAction"},
		{`{apiVersion: projectcalico.org/v3, kind: NetworkSet, spec: {nets: [10.0.0]}}`, "spec.nets[0]"},
		{`{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, spec: {nets: ["::", 10.0.0]}}`, "spec.nets[1]"},
		{`{apiVersion: projectcalico.org/v3, kind: HostEndpoint, spec: {node: n1, interfaceName: eth0, expectedIPs: ["10.0.0"]}}`, "spec.expectedIPs[0]"},
		{`{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, spec: {doNotTrack: true, applyOnForward: true}}`, ""},
		{`{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, spec: {doNotTrack: true}}`, "spec.applyOnForward"},
		{`{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, spec: {doNotTrack: true, preDNAT: true, applyOnForward: true}}`, "spec.preDNAT"},
		{`{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, spec: {doNotTrack: true, applyOnForward: true, ingress: [{action: Log}]}}`, "spec.ingress[0].action"},
		{`{apiVersion: projectcalico.org/v3, kind: IPPool, spec: {cidr: 10.0.0}}`, "spec.cidr"},
		{`{apiVersion: projectcalico.org/v3, kind: IPReservation, spec: {reservedCIDRs: [10.0.0]}}`, "spec.reservedCIDRs[0]"},
		{`{apiVersion: projectcalico.org/v3, kind: IPAMConfiguration, spec: {strictAffinity: true, autoAllocateBlocks: true, maxBlocksPerHost: 4}}`, ""},
		{`{apiVersion: projectcalico.org/v3, kind: IPAMConfiguration, spec: {strictAffinity: true, autoAllocateBlocks: false}}`, "spec.autoAllocateBlocks"},
		{`{apiVersion: projectcalico.org/v3, kind: KubeControllersConfiguration, spec: {controllers: {node: {syncLabels: Disabled}}}}`, "spec.controllers.node.syncLabels"},
		{`{apiVersion: projectcalico.org/v3, kind: KubeControllersConfiguration, spec: {controllers: {node: {hostEndpoint: {templates: [{interfaceCIDRs: [10.0.0.0/8]}, {interfacePattern: "eth("}]}}}}}`,
			"spec.controllers.node.hostEndpoint.templates[1].interfacePattern"},
		{`{apiVersion: projectcalico.org/v3, kind: IPPool, spec: {cidr: 10.0.0.0/16, allowedUses: [Tunnel]}}`, "spec.allowedUses"},
		{`{apiVersion: projectcalico.org/v3, kind: BGPPeer, spec: {peerIP: 192.0.2.9}}`, "spec.asNumber"},
		{`{apiVersion: projectcalico.org/v3, kind: BGPConfiguration, spec: {}}`, "metadata.name"},
		{`{apiVersion: projectcalico.org/v3, kind: BGPFilter, spec: {}}`, ""}, // not converted
		{`{apiVersion: projectcalico.org/v3, kind: EgressGatewayPolicy, spec: {rules: [{destination: {cidr: 10.0.0}}]}}`, "spec.rules[0].destination.cidr"},
	} {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(x.text), &u.Object); err != nil {
			t.Fatal(err)
		}
		u.SetName("x")
		seen[u.GroupVersionKind().Group+"/"+u.GetKind()] = true
		problems := Check(u)
		if len(problems) == 0 != (x.field == "") || len(problems) > 0 && problems[0].Field != x.field {
			t.Errorf("%s: %v", x.text, problems)
		}
	}
	for kind := range checks {
		if !seen[kind] {
			t.Errorf("%s is not tried", kind)
		}
	}
}

// What is taken into a batch is what the watch would record; what is not in force is gone.
func TestTake(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		text string
		at   func(b *Batch) any
		want any
	}{
		{`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy}`, func(b *Batch) any { return len(b.Policies) }, 1},
		{`{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, spec: {selector: all()}}`, func(b *Batch) any {
			return b.Policies[model.PolicyID{Kind: model.KindCalicoNetworkPolicy, Name: model.Name{Namespace: "ns", Name: "x"}}].Subject.Namespace
		}, "ns"},
		{`{apiVersion: projectcalico.org/v3, kind: StagedNetworkPolicy, spec: {stagedAction: Ignore}}`, func(b *Batch) any { return len(b.Staged) == 1 && b.Empty() == false }, true},
		{`{apiVersion: projectcalico.org/v3, kind: Tier}`, func(b *Batch) any { return b.Tiers["x"].Name }, "x"},
		{`{apiVersion: projectcalico.org/v3, kind: NetworkSet, spec: {nets: [192.0.2.0/24]}}`, func(b *Batch) any { return len(b.NetworkSets[model.Name{Namespace: "ns", Name: "x"}].Nets) }, 1},
		{`{apiVersion: projectcalico.org/v3, kind: HostEndpoint, spec: {node: n1, interfaceName: eth0}}`, func(b *Batch) any { return b.HostEndpoints["x"].Node }, "n1"},
		{`{apiVersion: projectcalico.org/v3, kind: IPPool, spec: {cidr: 10.0.0.0/16}}`, func(b *Batch) any { return b.Empty() }, true},
	} {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(x.text), &u.Object); err != nil {
			t.Fatal(err)
		}
		u.SetName("x")
		u.SetNamespace("ns")
		b := &Batch{}
		if _, known := Take(u, b); !known || x.at(b) != x.want {
			t.Errorf("%s: %v, want %v", x.text, x.at(b), x.want)
		}
	}
	if _, known := Take(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod"}}, &Batch{}); known {
		t.Error("a Pod is taken")
	}
}
