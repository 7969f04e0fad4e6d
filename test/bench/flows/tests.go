// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/weir-net/weir/internal/nettest"
)

// part is tests of a package that are run for their figures.
type part struct {
	part, folder string
	figures      bool // otherwise the tests count: with figures they judge times, which are of a machine alone
	args         []string
}

var tested = []part{
	{"packets", "./test/bench/micro", true, []string{"-run", "^$", "-bench", "^BenchmarkRecords$", "-benchtime", "1x"}},
	{"begun", "./internal/dataplane/ebpf/offline", true, []string{"-run", "^TestNoFlowIsLostUnseen$"}},
	{"names", "./test/netns", true, []string{"-run", "^TestDomainNames$"}},
	{"handed", "./test/netns", true, []string{"-run", "^TestDomainNamesHanded$"}},
	{"preview", "./internal/policy/preview", true, []string{"-run", "^TestPreviewIsWhatHappens$"}},
	{"browser", "./test/ui", false, nil},
	{"page", "./test/ui", true, []string{"-run", "^TestPage$"}},
}

// ran are tests, those within tests, too, by how they ended.
type ran struct {
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"`
}

// run runs the tests. The error is of what is no test: they do not compile, or there is no Go.
func (p part) run(ctx context.Context) (of ran, figures []nettest.FigureRow, err error) {
	file, err := os.CreateTemp("", "weir-bench-flows-*.json")
	if err != nil {
		return of, nil, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count", "1", "-timeout", "20m", p.folder}, p.args...)...)
	if p.figures {
		cmd.Env = append(os.Environ(), nettest.FiguresVariable+"="+file.Name())
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	text, failed := cmd.Output()
	if exit := (*exec.ExitError)(nil); failed != nil && !errors.As(failed, &exit) {
		return of, nil, failed
	}
	if err := of.read(text, os.Stderr); err != nil {
		return of, nil, err
	}
	if failed != nil && of.Failed == 0 {
		return of, nil, fmt.Errorf("%w: %s", failed, said.String())
	}
	for d := json.NewDecoder(file); ; {
		var row nettest.FigureRow
		switch err := d.Decode(&row); {
		case errors.Is(err, io.EOF):
			return of, figures, nil
		case err != nil:
			return of, nil, fmt.Errorf("figures: %w", err)
		}
		figures = append(figures, row)
	}
}

// read counts what go test -json says. A benchmark passes with its package. What failed is shown.
func (r *ran) read(text []byte, show io.Writer) error {
	output := map[string]*strings.Builder{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct{ Action, Test, Output, Package string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("go test: %q: %w", lines.Text(), err)
		}
		of := output[e.Test]
		if of == nil {
			of = &strings.Builder{}
			output[e.Test] = of
		}
		of.WriteString(e.Output)
		switch e.Action {
		case "pass":
			if e.Test != "" || r.Passed+r.Failed+r.Skipped == 0 {
				r.Passed++
			}
		case "fail":
			if e.Test == "" && r.Failed > 0 {
				continue // the package of a test
			}
			r.Failed++
			fmt.Fprintf(show, "%s %s:\n%s\n", e.Package, e.Test, of)
		case "skip":
			if e.Test != "" {
				r.Skipped++
			}
		}
	}
	return lines.Err()
}

// packets are medians of runs in turns, less an empty program's.
type packets struct {
	What string  `json:"what"`
	Off  float64 `json:"offNs"` // without flow records
	On   float64 `json:"onNs"`
}

// newFlows are connections that begin on one node, each ended at once.
type newFlows struct {
	ASecond float64 `json:"aSecond"` // 50,000 at most
	Made    float64 `json:"made"`
	Kept    float64 `json:"kept"` // in a record of its own
	Lost    float64 `json:"lost"` // and counted as that
	Unseen  float64 `json:"unseen"`
}

// names are first connections to names that policy allows.
type names struct {
	Connections float64 `json:"connections"`
	Denied      float64 `json:"denied"` // or not made in time, or not found
}

// previewed are flows of which a preview of policies said what would be decided.
type previewed struct {
	Flows       float64 `json:"flows"`
	Differences float64 `json:"differences"` // from what is decided then
}

// note takes figures of a part into the result; it is an error when there are none.
func (r *result) note(part string, figures []nettest.FigureRow) error {
	found := false
	for _, f := range figures {
		what, side, is := strings.Cut(f.Name, ", ns a packet, flow records ")
		switch {
		case part == "packets" && is:
			if side == "off" {
				r.Packets = append(r.Packets, packets{What: what, Off: f.Value})
			} else if n := len(r.Packets); n > 0 && r.Packets[n-1].What == what {
				r.Packets[n-1].On = f.Value
			}
		case part == "begun" && f.Name == "new flows, a second":
			r.NewFlows = &newFlows{ASecond: f.Value}
		case part == "begun" && f.Name == "new flows, made" && r.NewFlows != nil:
			r.NewFlows.Made = f.Value
		case part == "begun" && f.Name == "new flows, kept" && r.NewFlows != nil:
			r.NewFlows.Kept = f.Value
		case part == "begun" && f.Name == "new flows, counted as lost" && r.NewFlows != nil:
			r.NewFlows.Lost = f.Value
		case part == "begun" && f.Name == "new flows, lost unseen" && r.NewFlows != nil:
			r.NewFlows.Unseen = f.Value
		case part == "names" && f.Name == "first connections, made":
			if r.Names == nil {
				r.Names = &names{}
			}
			r.Names.Connections += f.Value
		case part == "names" && f.Name == "first connections, denied":
			if r.Names == nil {
				r.Names = &names{}
			}
			r.Names.Denied += f.Value
		case part == "handed" || part == "page":
			if r.Times == nil {
				r.Times = map[string]map[string]float64{}
			}
			if r.Times[part] == nil {
				r.Times[part] = map[string]float64{}
			}
			r.Times[part][f.Name] = max(r.Times[part][f.Name], f.Value)
		case part == "preview" && f.Name == "preview, flows compared":
			r.Preview = &previewed{Flows: f.Value}
		case part == "preview" && f.Name == "preview, flows that differ" && r.Preview != nil:
			r.Preview.Differences = f.Value
		default:
			continue
		}
		found = true
	}
	if !found {
		return errors.New("its tests say no figures")
	}
	return nil
}
