// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// convertedStaged reads a staged policy from YAML as the watch does.
func convertedStaged(t *testing.T, text string) (*model.StagedPolicy, []weirv1.Problem) {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	switch u.GetKind() {
	case model.KindStagedNetworkPolicy:
		return stagedKind(u.GetKind(), ConvertStagedNetworkPolicy).convert(u)
	case model.KindStagedGlobalNetworkPolicy:
		return stagedKind(u.GetKind(), ConvertStagedGlobalNetworkPolicy).convert(u)
	}
	return stagedKind(u.GetKind(), ConvertStagedKubernetesNetworkPolicy).convert(u)
}

func TestConvertStaged(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		text     string
		replaces string
		del, nil bool
		ingress  int
		problems int
	}{
		{`{kind: StagedNetworkPolicy, metadata: {name: p, namespace: shop}, spec: {stagedAction: Set, tier: sec, order: 3, selector: a == 'b', types: [Ingress], ingress: [{action: Deny}]}}`,
			model.KindCalicoNetworkPolicy, false, false, 1, 0},
		{`{kind: StagedGlobalNetworkPolicy, metadata: {name: p}, spec: {selector: a == 'b', ingress: [{action: Deny}, {action: Pass}]}}`,
			model.KindGlobalNetworkPolicy, false, false, 2, 0},
		{`{kind: StagedKubernetesNetworkPolicy, metadata: {name: p, namespace: shop}, spec: {stagedAction: Learn, podSelector: {}, ingress: [{ports: [{port: 80}]}]}}`,
			model.KindNetworkPolicy, false, false, 1, 0},
		{`{kind: StagedGlobalNetworkPolicy, metadata: {name: p}, spec: {stagedAction: Delete, selector: "(", ingress: [{action: Deny}]}}`,
			model.KindGlobalNetworkPolicy, true, false, 0, 0},
		{`{kind: StagedNetworkPolicy, metadata: {name: p, namespace: shop}, spec: {stagedAction: Ignore}}`, "", false, true, 0, 0},
		{`{kind: StagedNetworkPolicy, metadata: {name: p, namespace: shop}, spec: {stagedAction: Perhaps, ingress: [{action: Allow}]}}`,
			model.KindCalicoNetworkPolicy, false, false, 1, 1},
		{`{kind: StagedGlobalNetworkPolicy, metadata: {name: p}, spec: {selector: "(", ingress: [{action: Allow}]}}`,
			model.KindGlobalNetworkPolicy, false, false, 1, 1},
		{`{kind: StagedGlobalNetworkPolicy, metadata: {name: p}, spec: {ingress: [{action: Allow, source: {nets: 7}}]}}`,
			model.KindGlobalNetworkPolicy, false, false, 1, 1},
	} {
		p, problems := convertedStaged(t, x.text)
		if len(problems) != x.problems {
			t.Errorf("%s: %v", x.text, problems)
		}
		if (p == nil) != x.nil {
			t.Errorf("%s: got %v", x.text, p)
		}
		if p == nil {
			continue
		}
		if p.Replaces() != (model.PolicyID{Kind: x.replaces, Name: p.Policy.Name}) || p.Delete != x.del || len(p.Policy.Ingress) != x.ingress {
			t.Errorf("%s: got %+v, in the place of %v", x.text, p, p.Replaces())
		}
		if x.problems == 1 && p.Policy.Invalid != "" && (len(p.Policy.Ingress) != 1 || p.Policy.Ingress[0].Action != model.Deny) {
			t.Errorf("%s: cannot be enforced, and would not deny: %+v", x.text, p.Policy.Ingress)
		}
	}
}

// What a staged policy's rules are is what the same rules are in force.
func TestStagedConvertsAsInForce(t *testing.T) {
	t.Parallel()
	const spec = `spec: {tier: sec, order: 3, selector: a == 'b', types: [Ingress, Egress],
  ingress: [{action: Allow, protocol: TCP, destination: {ports: [80, http]}, source: {selector: x == 'y'}}], egress: [{action: Pass, destination: {nets: [10.0.0.0/8]}}]}`
	want, _ := convertedPolicy(t, "kind: GlobalNetworkPolicy\nmetadata: {name: p}\n"+spec)
	got, problems := convertedStaged(t, "kind: StagedGlobalNetworkPolicy\nmetadata: {name: p}\n"+spec)
	if len(problems) > 0 || got == nil {
		t.Fatal(problems)
	}
	p := got.Policy
	p.Kind = want.Kind
	if !reflect.DeepEqual(want, &p) {
		t.Errorf("staged %+v, in force %+v", p, *want)
	}
}
