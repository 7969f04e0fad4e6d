// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/nettest"
)

func TestNew(t *testing.T) {
	all := []Cell{{Test: "a TestX"}, {Test: "a TestY"}, {Why: "none"}, {Test: "a TestZ", Kernels: "check"}}
	r, err := New(t.Context(), all, map[string]string{"a TestX": "passed", "a TestY": "failed"})
	if err == nil || r.Passed != 1 || r.Failed != 1 || r.NotRun != 1 || r.Emulated != 1 || r.Cells[2].Result != "not run" || r.Cells[3].Result != "emulated" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRead(t *testing.T) {
	results := map[string]string{}
	g := &group{folder: "a"}
	err := g.read(strings.NewReader(`{"Action":"run","Test":"TestX"}
{"Action":"pass","Test":"TestX/one"}
{"Action":"skip","Test":"TestX/two"}
{"Action":"output","Test":"TestX/three","Output":"why\n"}
{"Action":"fail","Test":"TestX/three"}
{"Action":"fail","Test":"TestX"}
`), results)
	if err != nil || len(results) != 3 || results["a TestX/one"] != "passed" || results["a TestX/three"] != "failed" || results["a TestX"] != "failed" {
		t.Errorf("results are %v (%v)", results, err)
	}
	if g.read(strings.NewReader("x\n"), results) == nil {
		t.Error("what is no event was taken")
	}
}

func TestGroups(t *testing.T) {
	got := groups([]Cell{{Test: "a TestX/one"}, {Test: "a TestX/two"}, {Test: "a TestX/one"}, {Why: "none"}, {Test: "a TestY"}, {Test: "b TestZ"}})
	if len(got) != 2 || strings.Join(got[0].patterns(), " ") != "^TestX$/^(one|two)$ ^TestY$" || strings.Join(got[1].patterns(), " ") != "^TestZ$" {
		t.Errorf("groups are %+v", got)
	}
}

func TestFigures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "figures")
	t.Setenv(nettest.FiguresVariable, path)
	nettest.Figure(t, "b", 2)
	nettest.Figure(t, "a", 3.5)
	nettest.Figure(t, "b", 1)
	r := Results{Figures: map[string][]float64{}, Cells: []Cell{{Mode: "m", What: "w", Test: "a TestX", Result: "passed"}, {Mode: "n", Why: "none", Result: "not run"}}}
	nettest.Must(t, r.ReadFigures(path))
	tables, err := r.Tables()
	nettest.Must(t, err)
	for _, want := range []string{"`a TestX`", "none", "| b ", "3.50"} {
		if !strings.Contains(tables, want) {
			t.Errorf("%q is not in\n%s", want, tables)
		}
	}
	mark := bench.BeginMark("test/routing")
	doc := filepath.Join(t.TempDir(), "doc.md")
	nettest.Must(t, os.WriteFile(doc, []byte("before\n"+mark+"\nold\n"+bench.EndMark+"\nafter\n"), 0o600))
	nettest.Must(t, r.WriteDoc(doc, "test/routing"))
	text, err := os.ReadFile(doc)
	nettest.Must(t, err)
	if !strings.HasPrefix(string(text), "before\n"+mark) || strings.Contains(string(text), "old") || !strings.HasSuffix(string(text), bench.EndMark+"\nafter\n") {
		t.Errorf("the document is %s", text)
	}
}
