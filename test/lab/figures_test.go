// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"testing"
	"time"
)

// record is what out/lab.json says of a test.
type record struct {
	Test    string             `json:"test"`
	Passed  bool               `json:"passed"`
	Seconds float64            `json:"seconds"`
	Figures map[string]float64 `json:"figures,omitempty"`
}

type recorder struct {
	mu      sync.Mutex
	records map[string]*record
}

var figures = &recorder{records: map[string]*record{}}

func (r *recorder) of(t *testing.T) *record {
	if r.records[t.Name()] == nil {
		r.records[t.Name()] = &record{Test: t.Name(), Figures: map[string]float64{}}
	}
	return r.records[t.Name()]
}

// begin records how the test ends.
func (r *recorder) begin(t *testing.T) {
	began := time.Now()
	r.mu.Lock()
	r.of(t)
	r.mu.Unlock()
	t.Cleanup(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.of(t).Passed, r.of(t).Seconds = !t.Failed(), time.Since(began).Seconds()
	})
}

// note prints a figure and keeps it.
func note(t *testing.T, name string, value float64) {
	t.Helper()
	fmt.Printf("    %s: %s = %.3g\n", t.Name(), name, value)
	figures.mu.Lock()
	defer figures.mu.Unlock()
	figures.of(t).Figures[name] = value
}

// percentile of values that it sorts; p in 0..1.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sort.Float64s(values)
	return values[min(len(values)-1, int(float64(len(values))*p))]
}

func (r *recorder) write(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*record
	for _, rec := range r.records {
		out = append(out, rec)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Test < out[j].Test })
	raw, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}
