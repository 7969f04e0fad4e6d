// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// decoded is a pod as it comes out of a decoder: everything is its own.
func decoded(template, n int) *Pod {
	own := func(format string, args ...any) string { return strings.Clone(fmt.Sprintf(format, args...)) }
	return &Pod{Name: Name{own("ns-%d", template%3), own("pod-%d-%d", template, n)}, Node: own("node-%d", n%7), ServiceAccount: own("default"),
		Labels: map[string]string{own("app"): own("app-%d", template), own("tier"): own("t%d", template%2)},
		Ports:  []PodPort{{Name: own("http"), Protocol: ProtocolTCP, Port: uint16(8000 + template)}}}
}

func sameText(a, b string) bool { return a == b && unsafe.StringData(a) == unsafe.StringData(b) }

func TestSharedPodsAreEqualAndShare(t *testing.T) {
	var s Shared
	first := map[int]*Pod{}
	for i := range 300 {
		template := i % 30
		p, want := decoded(template, i), decoded(template, i)
		s.Pod(p)
		if !reflect.DeepEqual(p, want) {
			t.Fatalf("pod %+v became %+v", want, p)
		}
		like := first[template]
		if like == nil {
			first[template] = p
			continue
		}
		if reflect.ValueOf(p.Labels).Pointer() != reflect.ValueOf(like.Labels).Pointer() || &p.Ports[0] != &like.Ports[0] ||
			!sameText(p.Name.Namespace, like.Name.Namespace) || !sameText(p.ServiceAccount, like.ServiceAccount) {
			t.Fatalf("pod %s shares not all with %s", p.Name, like.Name)
		}
	}
	for name, value := range first[0].Labels {
		for n := range first[1].Labels {
			if n == name && !sameText(n, name) {
				t.Errorf("the name of label %s=%s is there twice", name, value)
			}
		}
	}
}

// Values at the same place are distinguished.
func TestSharedTellsApart(t *testing.T) {
	var s Shared
	a, b := map[string]string{"app": "a"}, map[string]string{"app": "b"}
	s.labelsLike(a)
	for place := range s.labels.young {
		s.labels.young[place] = sized[map[string]string]{b, 1}
	}
	if got := s.labelsLike(maps.Clone(a)); !maps.Equal(got, a) {
		t.Errorf("labels %v became %v", a, got)
	}
	p, q := []PodPort{{Name: "a"}}, []PodPort{{Name: "b"}}
	s.portsLike(p)
	for place := range s.ports.young {
		s.ports.young[place] = sized[[]PodPort]{q, 1}
	}
	if got := s.portsLike(slices.Clone(p)); !slices.Equal(got, p) {
		t.Errorf("ports %v became %v", p, got)
	}
}

// What is asked for stays; what is not is forgotten, so that no number of texts, and no size of
// one, takes more than two generations.
func TestSharedIsBounded(t *testing.T) {
	var s Shared
	kept := s.Text("kept")
	const each = 1000
	for i := range 5 * sharedMost / each {
		s.Text(fmt.Sprintf("%0*d", each, i))
		if !sameText(s.Text(strings.Clone("kept")), kept) {
			t.Fatalf("forgotten after %d others though it was asked for", i)
		}
	}
	size := 0
	for _, of := range []map[string]sized[string]{s.texts.young, s.texts.old} {
		for text := range of {
			size += len(text)
		}
	}
	if size > 2*sharedMost {
		t.Errorf("%d bytes are kept", size)
	}
	if _, there := s.texts.get(fmt.Sprintf("%0*d", each, 0)); there {
		t.Error("nothing is forgotten")
	}
	before := len(s.texts.young)
	if large := strings.Repeat("x", sharedMost/2); s.Text(large) != large || len(s.texts.young) != before {
		t.Error("one large text takes the place of many")
	}
}
