// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

func (f *fixture) policy(text string) {
	f.t.Helper()
	u := &unstructured.Unstructured{}
	if b, err := yaml.YAMLToJSON([]byte(text)); err != nil {
		f.t.Fatal(err)
	} else if err := u.UnmarshalJSON(b); err != nil {
		f.t.Fatal(err)
	}
	for _, r := range policyResources {
		if strings.HasPrefix(r.Resource, strings.TrimSuffix(strings.ToLower(u.GetKind()), "y")) {
			if err := f.dynamic.Tracker().Create(r, u, ""); err != nil {
				f.t.Fatal(err)
			}
			return
		}
	}
	f.t.Fatalf("%s is none of the kinds", u.GetKind())
}

func (f *fixture) conditions(resource int, name string) []metav1.Condition {
	f.t.Helper()
	u, err := f.dynamic.Resource(policyResources[resource]).Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := conditionsOf(u)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func (f *fixture) statusWrites() (n int) {
	for _, a := range f.dynamic.Actions() {
		if a.GetVerb() == "update" && a.GetSubresource() == "status" && slices.Contains(policyResources, a.GetResource()) {
			n++
		}
	}
	return n
}

const (
	fine = `{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: fine, generation: 3}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}},
  egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]},
  status: {conditions: [{type: Other, status: "True", reason: X, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`
	names = `{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: names}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}},
  egress: [{action: Deny, to: [{domainNames: [example.com]}]}]}}`
	admin    = `{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: a}, spec: {priority: 1, subject: {namespaces: {}}, ingress: [{action: Allow, from: [{namespaces: {}}]}]}}`
	baseline = `{apiVersion: policy.networking.k8s.io/v1alpha1, kind: BaselineAdminNetworkPolicy, metadata: {name: default}, spec: {subject: {namespaces: {}}, ingress: [{action: Pass, from: [{namespaces: {}}]}]}}`
)

// Each policy says whether it is enforced as it is written, names the field that is not, and is
// written only when that changes.
func TestConditionsOfPolicies(t *testing.T) {
	f := newFixture(t)
	for _, text := range []string{fine, names, admin, baseline} {
		f.policy(text)
	}
	if err := f.after(0); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		resource  int
		name      string
		status    metav1.ConditionStatus
		in        string
		remaining int
	}{
		{0, "fine", metav1.ConditionTrue, "as it is written", 2},
		{0, "names", metav1.ConditionFalse, "spec.egress[0].to: has domainNames", 1},
		{1, "a", metav1.ConditionTrue, "as it is written", 1},
		{2, "default", metav1.ConditionFalse, "spec.ingress[0].action: is no action of this kind", 1},
	} {
		all := f.conditions(x.resource, x.name)
		got := meta.FindStatusCondition(all, conditionAccepted)
		if got == nil || got.Status != x.status || !strings.Contains(got.Message, x.in) || len(all) != x.remaining || !got.LastTransitionTime.Equal(&metav1.Time{Time: f.clock}) {
			t.Errorf("%s: %+v", x.name, all)
		}
	}
	if got := meta.FindStatusCondition(f.conditions(0, "fine"), conditionAccepted); got.ObservedGeneration != 3 {
		t.Errorf("generation %d", got.ObservedGeneration)
	}
	writes := f.statusWrites()
	if err := f.after(time.Minute); err != nil || f.statusWrites() != writes || writes != 4 {
		t.Errorf("%d writes, then %d; %v", writes, f.statusWrites(), err)
	}
}

// A policy that is corrected is accepted; what somebody else changes meanwhile is left for the next
// look; what cannot be read is an error.
func TestConditionsChange(t *testing.T) {
	f := newFixture(t)
	f.policy(names)
	if err := f.after(0); err != nil {
		t.Fatal(err)
	}
	u, err := f.dynamic.Resource(policyResources[0]).Get(t.Context(), "names", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(u.Object, "spec", "egress")
	u.SetGeneration(2)
	if err := f.dynamic.Tracker().Update(policyResources[0], u, ""); err != nil {
		t.Fatal(err)
	}
	conflict := true
	f.dynamic.PrependReactor("update", "clusternetworkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflict {
			return true, nil, apierrors.NewConflict(policyResources[0].GroupResource(), "names", errors.New("changed"))
		}
		return false, nil, nil
	})
	if err := f.after(time.Second); err != nil || f.conditions(0, "names")[0].Status != metav1.ConditionFalse {
		t.Errorf("a conflict: %v, %+v", err, f.conditions(0, "names"))
	}
	conflict = false
	if err := f.after(time.Second); err != nil {
		t.Fatal(err)
	}
	if got := f.conditions(0, "names")[0]; got.Status != metav1.ConditionTrue || got.ObservedGeneration != 2 || !got.LastTransitionTime.Equal(&metav1.Time{Time: f.clock}) {
		t.Errorf("%+v", got)
	}
	for _, status := range []int{403, 404} {
		f.dynamic.PrependReactor("list", "adminnetworkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewGenericServerResponse(status, "list", policyResources[1].GroupResource(), "", "", 0, true)
		})
		if err := f.reportPolicies(t.Context()); (err == nil) != (status == 404) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// The message of a policy with very much wrong is bounded.
func TestConditionMessageIsBounded(t *testing.T) {
	t.Parallel()
	u := &unstructured.Unstructured{}
	rule := `{action: Accept, to: [` + strings.Repeat(`{domainNames: ["www.*.com"]},`, 25) + `]},`
	if err := yaml.Unmarshal([]byte(`{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: x}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [`+
		strings.Repeat(rule, 25)+`]}}`), &u.Object); err != nil {
		t.Fatal(err)
	}
	if got := accepted(u); got.Status != metav1.ConditionFalse || len(got.Message) > maxMessage+len(messageMore) || len(got.Message) < maxMessage/2 {
		t.Errorf("%s with %d bytes", got.Status, len(got.Message))
	}
}
