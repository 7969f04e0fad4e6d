// SPDX-License-Identifier: Apache-2.0

package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/nettest"
)

// Tests are counted once each, what failed is shown, and tests that do not run count as failed.
func TestRead(t *testing.T) {
	t.Parallel()
	event := func(action, test, output string) string {
		return `{"Action":"` + action + `","Package":"p","Test":"` + test + `","Output":"` + output + `"}` + "\n"
	}
	for name, c := range map[string]struct {
		text  string
		want  ran
		shown string
	}{
		"tests":       {event("pass", "A/b", "") + event("pass", "A", "") + event("skip", "C", "") + event("pass", "", ""), ran{Passed: 2, Skipped: 1}, ""},
		"one fails":   {event("output", "A", "it is so") + event("fail", "A", "") + event("pass", "B", "") + event("fail", "", ""), ran{Passed: 1, Failed: 1}, "it is so"},
		"a benchmark": {event("pass", "", ""), ran{Passed: 1}, ""},
		"no build":    {event("output", "", "syntax") + event("fail", "", ""), ran{Failed: 1}, "syntax"},
	} {
		var got ran
		var shown strings.Builder
		if err := got.read([]byte(c.text), &shown); err != nil || got != c.want || !strings.Contains(shown.String(), c.shown) || c.shown == "" && shown.Len() > 0 {
			t.Errorf("%s: %+v, %v, shown %q", name, got, err, shown.String())
		}
	}
	var got ran
	if err := got.read([]byte("FAIL p [build failed]\n"), &strings.Builder{}); err == nil {
		t.Error("what is no JSON is taken")
	}
}

// Figures of both families and both sides come together; a part without any is an error.
func TestNote(t *testing.T) {
	t.Parallel()
	r := &result{}
	for part, figures := range map[string][]nettest.FigureRow{
		"packets": {{Name: "x, ns a packet, flow records off", Value: 40}, {Name: "x, ns a packet, flow records on", Value: 50}, {Name: "other"}},
		"names":   {{Name: "first connections, made", Value: 10_000}, {Name: "first connections, denied"}, {Name: "first connections, made", Value: 9_999}, {Name: "first connections, denied", Value: 1}},
		"begun":   {{Name: "new flows, a second", Value: 50_000}, {Name: "new flows, made", Value: 9}, {Name: "new flows, kept", Value: 8}, {Name: "new flows, counted as lost", Value: 1}, {Name: "new flows, lost unseen", Value: 2}},
		"page":    {{Name: "first paint, ms", Value: 300}, {Name: "first paint, ms", Value: 200}},
		"preview": {{Name: "preview, flows compared", Value: 7}, {Name: "preview, flows that differ", Value: 2}},
	} {
		if err := r.note(part, figures); err != nil {
			t.Errorf("%s: %v", part, err)
		}
	}
	want := &result{Packets: []packets{{"x", 40, 50}}, Names: &names{19_999, 1}, Preview: &previewed{7, 2}, NewFlows: &newFlows{50_000, 9, 8, 1, 2}, Times: map[string]map[string]float64{"page": {"first paint, ms": 300}}}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("%+v", r)
	}
	if r.note("names", []nettest.FigureRow{{Name: "other"}}) == nil {
		t.Error("a part without figures is taken")
	}
}
