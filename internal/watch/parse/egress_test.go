// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/model"
)

// What cannot be read is reported, and the pod stays a client: it selects nobody.
func TestEgress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		annotations map[string]string
		want        *model.EgressClient
		problems    int
	}{
		{nil, nil, 0},
		{map[string]string{model.AnnotationEgressSelector: "a == 'b'"}, &model.EgressClient{Selector: "a == 'b'"}, 0},
		{map[string]string{model.AnnotationEgressSelector: "a =="}, &model.EgressClient{Selector: "a =="}, 1},
		{map[string]string{model.AnnotationEgressNamespaces: "(", model.AnnotationEgressPolicy: "p"}, &model.EgressClient{Namespaces: "(", Policy: "p"}, 1},
	} {
		f := NewFinding("Pod", &corev1.Pod{})
		if got := f.Egress(test.annotations); !got.Equal(test.want) || len(f.List) != test.problems {
			t.Errorf("%v: %+v, %d problems", test.annotations, got, len(f.List))
		}
	}
}

func TestEgressGateway(t *testing.T) {
	t.Parallel()
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, test := range []struct {
		text      string
		deleted   *metav1.Time
		condition []corev1.PodCondition
		is, ready bool
		problems  int
	}{
		{"", nil, ready, false, false, 0},
		{"false", nil, ready, false, false, 0},
		{"yes", nil, ready, false, false, 1},
		{"true", nil, ready, true, true, 0},
		{"true", nil, nil, true, false, 0},
		{"true", &metav1.Time{}, ready, true, false, 0},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{model.AnnotationEgressGateway: test.text}, DeletionTimestamp: test.deleted}, Status: corev1.PodStatus{Conditions: test.condition}}
		f := NewFinding("Pod", p)
		got := f.EgressGateway(p)
		if (got != nil) != test.is || got != nil && got.Ready != test.ready || len(f.List) != test.problems {
			t.Errorf("%q: %+v, %d problems", test.text, got, len(f.List))
		}
	}
}

// A namespace whose grant cannot be read grants nothing.
func TestEgressClients(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "has(team)": "has(team)", "team ==": ""} {
		f := NewFinding("Namespace", &corev1.Namespace{})
		if got := f.EgressClients(map[string]string{model.AnnotationEgressClients: text}); got != want || (len(f.List) > 0) != (got != text) {
			t.Errorf("%q: %q, %d problems", text, got, len(f.List))
		}
	}
}
