// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// test is one test of the suite in one run.
type test struct {
	Name    string   `json:"name"`
	Run     int      `json:"run"`
	Outcome string   `json:"outcome"` // PASS, FAIL or SKIP
	Seconds float64  `json:"seconds"`
	Parts   int      `json:"parts"` // that passed
	Failed  []string `json:"failed,omitempty"`
}

// result is what goes to out/policyapi.json.
type result struct {
	Suite   string            `json:"suite"`
	Only    string            `json:"only,omitempty"`
	Install string            `json:"install,omitempty"` // arguments of weir install
	Passed  int               `json:"passed"`
	Failed  int               `json:"failed"`
	Skipped map[string]string `json:"skipped"` // with reasons
	Tests   []test            `json:"tests"`
}

func (r *result) add(tests []test) { r.Tests = append(r.Tests, tests...) }

// evaluate counts. It returns an error when a test failed, when one was skipped that skips does not
// name, and when skips names one that was not.
func (r *result) evaluate(skips map[string]string, only string) error {
	var errs []error
	r.Skipped = map[string]string{}
	for _, t := range r.Tests {
		switch t.Outcome {
		case "PASS":
			r.Passed++
		case "FAIL":
			r.Failed++
		default:
			reason, known := skips[t.Name]
			if !known {
				errs = append(errs, fmt.Errorf("%s was skipped, and skips.golden does not say why", t.Name))
			}
			r.Skipped[t.Name] = reason
		}
	}
	for name := range skips {
		if _, skipped := r.Skipped[name]; !skipped && only == "" {
			errs = append(errs, fmt.Errorf("skips.golden names %s, which was not skipped", name))
		}
	}
	fmt.Printf("policyapi: %d passed, %d failed, %d skipped\n", r.Passed, r.Failed, len(r.Skipped))
	if r.Failed > 0 {
		errs = append(errs, fmt.Errorf("%d tests failed", r.Failed))
	}
	if r.Passed == 0 {
		errs = append(errs, errors.New("no test passed"))
	}
	return errors.Join(errs...)
}

func (r *result) write(path string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// readSkips reads lines of a test's name, a colon, and the reason why it is skipped.
func readSkips(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, reason, ok := strings.Cut(line, ": ")
		if !ok {
			return nil, fmt.Errorf("%s: %q has no reason", path, line)
		}
		out[name] = reason
	}
	return out, nil
}

// progress reads the output of go test -v as it is written, and prints a line for each test of the
// suite that ended.
type progress struct {
	log, to io.Writer
	began   time.Time
	run     int

	rest    []byte
	pending map[string]*test // parts that ended, of tests that did not
	tests   []test
	ended   bool // the suite as a whole
	failed  bool // its outcome
}

// whole returns an error when the suite failed, and none of its tests did: then it failed outside
// of them, as in setting up or in removing what it made. exited is how its program ended.
func (p *progress) whole(exited error) error {
	for _, t := range p.tests {
		if t.Outcome == "FAIL" {
			return nil
		}
	}
	switch {
	case p.failed:
		return errors.New("the suite failed outside of its tests")
	case exited != nil:
		return fmt.Errorf("the suite's program failed, and no test did: %w", exited)
	}
	return nil
}

// outcome is how go test reports how a test ended, with -test.v=test2json: as soon as it ended, the
// parts of a test before the test.
var outcome = regexp.MustCompile(`^\x16?\s*--- (PASS|FAIL|SKIP): TestConformance(/\S+)? \(([0-9.]+)s\)$`)

func (p *progress) Write(b []byte) (int, error) {
	if _, err := p.log.Write(b); err != nil {
		return 0, err
	}
	p.rest = append(p.rest, b...)
	for {
		i := bytes.IndexByte(p.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		p.line(strings.TrimRight(string(p.rest[:i]), "\r"))
		p.rest = p.rest[i+1:]
	}
}

func (p *progress) line(text string) {
	m := outcome.FindStringSubmatch(text)
	if m == nil {
		return
	}
	if m[2] == "" {
		p.ended, p.failed = true, m[1] == "FAIL"
		return
	}
	name, part, isPart := strings.Cut(m[2][1:], "/")
	t := p.pending[name]
	if t == nil {
		t = &test{Name: name, Run: p.run}
	}
	if isPart {
		switch m[1] {
		case "PASS":
			t.Parts++
		case "FAIL":
			t.Failed = append(t.Failed, part)
			fmt.Fprintf(p.to, "policyapi: %5.0f s  FAIL            %s: %s\n", time.Since(p.began).Seconds(), name, part)
		}
		if p.pending == nil {
			p.pending = map[string]*test{}
		}
		p.pending[name] = t
		return
	}
	delete(p.pending, name)
	t.Outcome = m[1]
	t.Seconds, _ = strconv.ParseFloat(m[3], 64)
	p.tests = append(p.tests, *t)
	fmt.Fprintf(p.to, "policyapi: %5.0f s  %s  %6.1f s  %s\n", time.Since(p.began).Seconds(), m[1], t.Seconds, name)
}
