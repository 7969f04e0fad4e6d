// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"
)

// How a spec ended.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped" // by itself
	missing = "not run"
)

// spec is the outcome of one spec in one run.
type spec struct {
	Name    string  `json:"name"`
	Group   string  `json:"group"`
	Outcome string  `json:"outcome"`
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"`
	// Again is the outcome of a second try of a spec that failed: it distinguishes what fails now
	// and then, and changes nothing but with --second-try.
	Again string `json:"again,omitempty"`
}

// oneRun is one run of all groups.
type oneRun struct {
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"` // labs included, pauses not
	Specs   []spec    `json:"specs"`
}

// result is out/e2e….json.
type result struct {
	Suite    string   `json:"suite"`
	Settings settings `json:"settings"` // empty ones are Weir's defaults
	Focus    string   `json:"focus,omitempty"`
	Groups   string   `json:"groups,omitempty"`
	Build    string   `json:"build"` // of Weir's programs
	// SecondTry excuses a few specs that passed when they were run again alone: upstream's specs
	// have time limits, which a machine that is slow and shared does not always keep.
	SecondTry bool     `json:"second_try,omitempty"`
	Runs      []oneRun `json:"runs"`
	Skipped   []skip   `json:"skipped"`
	// Known are the failures that known-failures.txt lists.
	Known []string `json:"known_failures"`
	// Wrong are the specs that did not pass in every run and are not known to fail.
	Wrong []string `json:"wrong"`
	// Recovered are listed as known failures and passed in every run.
	Recovered  []string `json:"recovered"`
	classified bool
}

type junit struct {
	Suites []struct {
		Cases []struct {
			Name    string  `xml:"name,attr"`
			Status  string  `xml:"status,attr"`
			Time    float64 `xml:"time,attr"`
			Skipped *struct {
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
			Failure *problem `xml:"failure"`
			Error   *problem `xml:"error"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

type problem struct {
	Text string `xml:",chardata"`
}

// readReports reads the JUnit files of a run: the outcome of each spec by its name. What is not a
// spec (the suite's own set-up) is there only if it failed.
func readReports(dir string) (map[string]spec, error) {
	files, _ := filepath.Glob(filepath.Join(dir, "junit*.xml"))
	if len(files) == 0 {
		return nil, fmt.Errorf("no JUnit report in %s", dir)
	}
	out := map[string]spec{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var j junit
		if err := xml.Unmarshal(raw, &j); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		for _, s := range j.Suites {
			for _, c := range s.Cases {
				name, isSpec := strings.CutPrefix(c.Name, "[It] ")
				r := spec{Name: strings.TrimSpace(name), Outcome: passed, Seconds: c.Time}
				switch {
				case c.Status == "interrupted":
					r.Outcome = missing
				case c.Failure != nil:
					r.Outcome, r.Message = failed, firstLines(c.Failure.Text)
				case c.Error != nil:
					r.Outcome, r.Message = failed, firstLines(c.Error.Text)
				case c.Skipped != nil:
					r.Outcome, r.Message = skipped, c.Skipped.Message
				}
				if isSpec || r.Outcome == failed {
					out[r.Name] = r
				}
			}
		}
	}
	return out, nil
}

func firstLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[:min(len(lines), 12)], "\n")
}

// outcomes picks the specs of a group, and what failed and is no spec.
func outcomes(t task, found map[string]spec) []spec {
	var out []spec
	for _, name := range t.Specs {
		s, ok := found[name]
		if !ok {
			s = spec{Name: name, Outcome: missing}
		}
		s.Group = t.Name
		out = append(out, s)
		delete(found, name)
	}
	for _, s := range found {
		if s.Outcome == failed {
			s.Group = t.Name
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b spec) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// maxExcused is how many specs of a run a second try excuses: what breaks more is no accident.
const maxExcused = 3

// excused are the specs of a run that failed and count as passed.
func (r *result) excused(run oneRun) map[string]bool {
	out := map[string]bool{}
	for _, s := range run.Specs {
		if r.SecondTry && s.Outcome == failed && s.Again == passed {
			out[s.Name] = true
		}
	}
	if len(out) > maxExcused {
		return nil
	}
	return out
}

// classify sorts what did not pass into known and wrong, and finds known failures that passed. What
// was not run did not pass.
func (r *result) classify(known map[string]string, tasks []task) {
	r.classified, r.Known, r.Wrong, r.Recovered = true, nil, nil, nil
	bad := map[string]bool{}
	for _, run := range r.Runs {
		ended, excused := map[string]bool{}, r.excused(run)
		for _, s := range run.Specs {
			ended[s.Name] = true
			if s.Outcome != passed && !excused[s.Name] {
				bad[s.Name] = true
			}
		}
		for _, t := range tasks {
			for _, name := range t.Specs {
				if !ended[name] {
					bad[name] = true
				}
			}
		}
	}
	for name := range bad {
		if known[name] != "" {
			r.Known = append(r.Known, name)
		} else {
			r.Wrong = append(r.Wrong, name)
		}
	}
	for _, t := range tasks {
		for _, name := range t.Specs {
			if known[name] != "" && !bad[name] {
				r.Recovered = append(r.Recovered, name)
			}
		}
	}
	sort.Strings(r.Known)
	sort.Strings(r.Wrong)
	sort.Strings(r.Recovered)
}

// verdict is nil when everything that should pass did.
func (r *result) verdict(knownPath string) error {
	ran := 0
	for _, run := range r.Runs {
		for _, s := range run.Specs {
			if s.Outcome == passed {
				ran++
			}
		}
	}
	switch {
	case ran == 0:
		return fmt.Errorf("no spec passed")
	case len(r.Wrong) > 0:
		return fmt.Errorf("%d specs did not pass that %s does not list", len(r.Wrong), knownPath)
	case len(r.Recovered) > 0:
		return fmt.Errorf("%s lists specs that pass now, remove them:\n  %s", knownPath, strings.Join(r.Recovered, "\n  "))
	}
	return nil
}

// print shows the runs as a table, what did not pass, and what took longest.
func (r *result) print(w io.Writer, path string) {
	fmt.Fprintf(w, "\n%-4s %-12s %7s %7s %7s %7s %9s\n", "run", "group", "passed", "failed", "skipped", "not run", "spec time")
	var all []spec
	for i, run := range r.Runs {
		var groups []string
		count := map[string]map[string]int{}
		seconds := map[string]float64{}
		for _, s := range run.Specs {
			if count[s.Group] == nil {
				groups = append(groups, s.Group)
				count[s.Group] = map[string]int{}
			}
			count[s.Group][s.Outcome]++
			seconds[s.Group] += s.Seconds
		}
		for _, g := range groups {
			c := count[g]
			fmt.Fprintf(w, "%-4d %-12s %7d %7d %7d %7d %7.0f s\n", i+1, g, c[passed], c[failed], c[skipped], c[missing], seconds[g])
		}
		fmt.Fprintf(w, "%-4d %-12s took %.0f s, labs included\n", i+1, "all", run.Seconds)
		all = append(all, run.Specs...)
	}
	reasons := map[string]int{}
	for _, s := range r.Skipped {
		reasons[s.Reason]++
	}
	fmt.Fprintf(w, "left out by skips.golden: %d specs %v\n", len(r.Skipped), reasons)
	slices.SortStableFunc(all, func(a, b spec) int { return int(1000 * (b.Seconds - a.Seconds)) })
	fmt.Fprintln(w, "longest:")
	for _, s := range all[:min(len(all), 5)] {
		fmt.Fprintf(w, "  %5.0f s  %s\n", s.Seconds, s.Name)
	}
	for _, s := range all {
		if s.Outcome != passed {
			message, _, _ := strings.Cut(s.Message, "\n")
			if s.Again != "" {
				message += " [run once more: " + s.Again + "]"
			}
			fmt.Fprintf(w, "%s: %s\n        %s\n", strings.ToUpper(s.Outcome), s.Name, message)
		}
	}
	if r.classified {
		fmt.Fprintf(w, "e2e: %d wrong, %d known failures, %d known failures that pass; all outcomes are in %s\n", len(r.Wrong), len(r.Known), len(r.Recovered), path)
	}
}

func writeJSON(path string, v any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	// What is there stays whole when we are killed.
	if err := os.WriteFile(path+".new", append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
