// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSummarize(t *testing.T) {
	var sample []float64
	for i := 101; i >= 1; i-- {
		sample = append(sample, float64(i))
	}
	got := Summarize(sample)
	want := Summary{Count: 101, Mean: 51, P50: 51, P90: 91, P99: 100, Min: 1, Max: 101}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if sample[0] != 101 {
		t.Error("the sample was sorted in place")
	}
	if got := Summarize(nil); got != (Summary{}) {
		t.Errorf("empty sample: %+v", got)
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		sample []float64
		q      float64
		want   float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0.99, 7},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{4, 1, 3, 2}, 0, 1},
		{[]float64{4, 1, 3, 2}, 1, 4},
		{[]float64{10, 20}, 0.25, 12.5},
	} {
		if got := Quantile(c.sample, c.q); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("quantile %v of %v: got %v, want %v", c.q, c.sample, got, c.want)
		}
	}
	if Ratio(1, 0) != 0 || Ratio(3, 2) != 1.5 {
		t.Error("ratio")
	}
}

func TestTable(t *testing.T) {
	tab := Table{Head: []string{"path", "µs"}}
	tab.Add("pod → pod", 84.91)
	tab.Add("x", 1234.5)
	tab.Add("y", "–")
	var b strings.Builder
	if err := tab.Write(&b, true); err != nil {
		t.Fatal(err)
	}
	want := "| path      | µs   |\n| --------- | ---- |\n| pod → pod | 84.9 |\n| x         | 1234 |\n| y         |    – |\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestWriteJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "x.json")
	if err := WriteJSON(path, map[string]float64{"ns": 1.5}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]float64
	if err := json.Unmarshal(b, &back); err != nil || back["ns"] != 1.5 {
		t.Errorf("read back %v, %v", back, err)
	}
	if err := WriteJSON(path, math.NaN()); err == nil {
		t.Error("NaN was written")
	}
}
