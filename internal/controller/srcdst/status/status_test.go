// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/internal/nettest"
)

// TestStatus: what is written is read, nothing is written twice, and nothing is said where nothing
// is to be switched, or where there is no ConfigMap.
func TestStatus(t *testing.T) {
	ctx, none := t.Context(), fake.NewClientset()
	if s, err := Read(ctx, none); err != nil || s.Setting != "" {
		t.Errorf("without a ConfigMap: %+v, %v", s, err)
	}
	if err := Write(ctx, none, Status{}); err == nil {
		t.Error("written without a ConfigMap")
	}
	kube := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: Name}})
	updates := func() (n int) {
		for _, a := range kube.Actions() {
			if a.GetVerb() == "update" {
				n++
			}
		}
		kube.ClearActions()
		return n
	}
	many := Status{Setting: "Enable", InForce: 1}
	for i := range maxFailed + 3 {
		many.Failed = append(many.Failed, Failure{fmt.Sprint("n", i), "why"})
	}
	for _, step := range []struct {
		what    string
		say     Status
		updates int
		inForce string
		first   []string // of the problems
		count   int
	}{
		{"nothing", Status{}, 0, "", nil, 0},
		{"in force", Status{Setting: "Disable", InForce: 3}, 1, "awsSrcDstCheck Disable on 3 nodes", nil, 0},
		{"the same", Status{Setting: "Disable", InForce: 3}, 0, "awsSrcDstCheck Disable on 3 nodes", nil, 0},
		{"not on all", Status{Setting: "Disable", InForce: 1, Others: 2, Error: "no region", Failed: []Failure{{"b", "has not its address"}}}, 1,
			"awsSrcDstCheck Disable on 1 nodes, 2 are no instances of EC2 (spec.providerID)",
			[]string{"awsSrcDstCheck Disable: no region", "awsSrcDstCheck Disable: node b: has not its address"}, 2},
		{"on many not", many, 1, "awsSrcDstCheck Enable on 1 nodes", []string{"awsSrcDstCheck Enable: node n0: why"}, maxFailed + 1},
		{"nothing again", Status{}, 1, "", nil, 0},
	} {
		nettest.Must(t, Write(ctx, kube, step.say))
		if n := updates(); n != step.updates {
			t.Errorf("%s: %d updates, want %d", step.what, n, step.updates)
		}
		s, err := Read(ctx, kube)
		inForce, problems := s.Words()
		if err != nil || inForce != step.inForce || len(problems) != step.count || !slices.Equal(problems[:len(step.first)], step.first) {
			t.Errorf("%s: %q, %q, %v", step.what, inForce, problems, err)
		}
		if step.what == "in force" && !reflect.DeepEqual(s, step.say) {
			t.Errorf("%s: read %+v, want %+v", step.what, s, step.say)
		}
	}
}
