// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// recorder keeps the result, and writes it whenever a spec ended: a run that is cut short loses
// only what was under way.
type recorder struct {
	mu   sync.Mutex
	res  *result
	path string
	run  int   // index of the run under way
	err  error // the first of writing
}

// begin makes run n, counted from 1, the one under way, and returns what it lacks.
func (r *recorder) begin(n int, tasks []task) []task {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.res.Runs) < n {
		r.res.Runs = append(r.res.Runs, oneRun{Began: time.Now().UTC().Truncate(time.Second)})
	}
	r.run = n - 1
	has := map[string]bool{}
	for _, s := range r.res.Runs[r.run].Specs {
		has[s.Name] = s.Outcome != missing
	}
	var left []task
	for _, t := range tasks {
		t.Specs = slices.DeleteFunc(slices.Clone(t.Specs), func(name string) bool { return has[name] })
		if len(t.Specs) > 0 {
			left = append(left, t)
		}
	}
	return left
}

// ended enters how a spec ended in the run under way.
func (r *recorder) ended(s spec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	specs := &r.res.Runs[r.run].Specs
	if i := slices.IndexFunc(*specs, func(have spec) bool { return have.Name == s.Name }); i >= 0 {
		s.Again = (*specs)[i].Again
		(*specs)[i] = s
	} else {
		*specs = append(*specs, s)
	}
	r.write()
}

// again enters how a spec ended that had failed and was run once more.
func (r *recorder) again(s spec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	specs := r.res.Runs[r.run].Specs
	if i := slices.IndexFunc(specs, func(have spec) bool { return have.Name == s.Name }); i >= 0 {
		specs[i].Again = s.Outcome
	}
	r.write()
}

// failed are the specs of a task that failed in the run under way and are not too long to be run
// once more.
func (r *recorder) failed(t task) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, s := range r.res.Runs[r.run].Specs {
		if s.Outcome == failed && s.Again == "" && s.Seconds < 600 && slices.Contains(t.Specs, s.Name) {
			out = append(out, s.Name)
		}
	}
	return out
}

// took adds to the time of the run under way.
func (r *recorder) took(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.Runs[r.run].Seconds += d.Seconds()
	r.write()
}

func (r *recorder) write() {
	if err := writeJSON(r.path, r.res); err != nil && r.err == nil {
		r.err = err
	}
}

// resume takes over the runs of an earlier result, which has to be of the same programs and specs.
func (r *result) resume(path string) error {
	raw, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var old result
	if err := json.Unmarshal(raw, &old); err != nil {
		return fmt.Errorf("going on with %s: %w", path, err)
	}
	if old.Build != r.Build || old.Settings != r.Settings || old.Focus != r.Focus || old.Groups != r.Groups {
		return fmt.Errorf("going on with %s: it is of other programs, settings or specs; without --resume it is replaced", path)
	}
	r.Runs = old.Runs
	return nil
}

// buildID names what the lab runs of Weir by its content.
func buildID(bin string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"weir-agent", "weir-cni", "weir-controller", "weir-fanout"} {
		f, err := os.Open(filepath.Join(bin, name))
		if err != nil {
			return "", fmt.Errorf("naming the build: %w", err)
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", fmt.Errorf("naming the build: %w", err)
		}
	}
	return fmt.Sprintf("%.6x", h.Sum(nil)), nil
}
