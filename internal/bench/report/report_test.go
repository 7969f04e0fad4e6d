// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/bench/result"
)

var update = flag.Bool("update", false, "write testdata anew")

// run is a file with a row of each kind.
func run(name string, times float64) *result.File {
	f := &result.File{Schema: result.Schema, Metadata: result.Metadata{Name: name, Generator: result.Generator, ClientNode: "a", ServerNode: "b", Date: "2026-11-21 10:00:00"},
		Data:    result.Data{CPU: "a CPU", Kernel: "6.18.0", MTU: "1500"},
		Cluster: result.Cluster{DataPlane: "plane <" + name + ">", Kubernetes: "v1.34.4"}, Settings: result.Settings{Rounds: 6, Duration: "1s", Tool: "test"}}
	row := func(id string, services int, test probe.Test) {
		r := result.Row{ID: id, Services: services, Spec: probe.Spec{Test: test}}
		for i := range 6 {
			v := times * (1 + float64(i)/100)
			x := probe.Result{Elapsed: 1, Bytes: int64(1e9 * v), Operations: int64(1000 * v), Sent: int64(1000 * v), Size: 64,
				Client: probe.Use{Elapsed: 1, CPUs: 2, System: 0.5}, Server: probe.Use{Elapsed: 1, CPUs: 2, System: 0.5}}
			if test != probe.Stream && test != probe.Datagrams {
				x.Bytes = 0
				x.Latency = &probe.Latency{Count: 100, Mean: 50 / v, P50: 45 / v, P90: 70 / v, P99: 90 / v, P999: 99 / v,
					Bins: []probe.Bin{{UpTo: 40 / times, Count: 40}, {UpTo: 60 / times, Count: 50}, {UpTo: 100 / times, Count: 10}}}
			}
			r.Rounds = append(r.Rounds, result.Round{Round: i + 1, Result: x})
		}
		f.Rows = append(f.Rows, r)
	}
	for _, path := range []string{"host2host", "pod2pod"} {
		row(path+"/tcp", 0, probe.Stream)
		row(path+"/crr", 0, probe.Connection)
		row(path+"/cps", 0, probe.Rate)
		row(path+"/pps", 0, probe.Datagrams)
	}
	row("pod2svc/crr", 0, probe.Connection)
	row("pod2svc/crr", 1000, probe.Connection)
	f.Finish()
	return f
}

func TestFigures(t *testing.T) {
	figures, err := Figures([]*result.File{run("one", 1), run("two", 1.5)})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range figures {
		names = append(names, figures[i].Name)
	}
	want := []string{"bandwidth", "cpu-per-gb", "latency", "latency-p99", "connections", "packets", "distribution-host2host-crr", "distribution-pod2pod-crr",
		"distribution-pod2svc-crr", "distribution-pod2svc-crr-1000", "scale-pod2svc-crr"}
	if !slices.Equal(names, want) {
		t.Errorf("figures %v, want %v", names, want)
	}
	dir := filepath.Join(t.TempDir(), "plots")
	if err := Save(figures, dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range want {
		raw, err := os.ReadFile(filepath.Join(dir, name+".png"))
		if err != nil {
			t.Fatal(err)
		}
		picture, err := png.Decode(bytes.NewReader(raw))
		if err != nil || picture.Bounds().Dx() < 300 {
			t.Errorf("%s: %v", name, err)
		}
		raw, err = os.ReadFile(filepath.Join(dir, name+".svg"))
		if err != nil || !bytes.Contains(raw, []byte("two: plane")) {
			t.Errorf("%s does not name the runs: %v", name, err)
		}
		for d := xml.NewDecoder(bytes.NewReader(raw)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

func TestPage(t *testing.T) {
	files := []*result.File{run("one", 1), run("<script>alert(1)</script>", 1.5)}
	figures, err := Figures(files)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := HTML(&out, files, figures); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, bad := range []string{"<script", "http://", "https://", "src=", "@import"} {
		// Names of XML vocabularies are not fetched.
		if strings.Contains(strings.NewReplacer("http://www.w3.org/2000/svg", "", "http://www.w3.org/1999/xlink", "").Replace(text), bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	if n := strings.Count(text, "<svg"); n != len(figures) {
		t.Errorf("%d pictures, want %d", n, len(figures))
	}
	for _, want := range []string{"8.20 [8.00–8.40]", "(1.00 of host)", "plane &lt;one&gt;"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not hold %q", want)
		}
	}
	// What the page says without its pictures is kept as it is.
	for i := range figures {
		svg, err := figures[i].Render("svg")
		if err != nil {
			t.Fatal(err)
		}
		text = strings.Replace(text, string(svg[bytes.Index(svg, []byte("<svg")):]), fmt.Sprintf("[%s]", figures[i].Name), 1)
	}
	golden := filepath.Join("testdata", "page.html")
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("the page differs from %s; look at it and run with -update\n%s", golden, text)
	}
}

func TestCSV(t *testing.T) {
	f := run("=1+1", 1)
	var out bytes.Buffer
	if err := CSV(&out, []*result.File{f}); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, r := range rows[1:] {
		if r[0] != "'=1+1" {
			t.Fatalf("a formula: %v", r)
		}
		if r[2] == "pod2pod/tcp" && r[4] == "bandwidth" {
			found = r[5] == "Gbit/s" && r[6] == "8.2" && r[10] == "6" && r[11] == "1"
		}
	}
	if !found {
		t.Errorf("%v", rows)
	}
}
