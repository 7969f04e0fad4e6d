// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestInterleave(t *testing.T) {
	var order strings.Builder
	runs := map[string][]float64{"a": {0, 0.9, 0, 0}, "b": {0, 0, 0, 0}, "c": {0.9, 0.8, 0.7, 0.6}}
	seen := map[string]int{}
	var cases []Case
	for _, name := range []string{"a", "b", "c"} {
		cases = append(cases, Case{Row: name, Run: func(context.Context) (Run, error) {
			order.WriteString(name)
			seen[name]++
			return Run{Others: runs[name][seen[name]-1], Elapsed: float64(seen[name])}, nil
		}})
	}
	out, err := Rounds{Count: 2, Others: 0.5, Extra: 2, Fill: 1}.Interleave(t.Context(), cases)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := order.String(), "abc"+"cba"+"ac"+"c"; got != want {
		t.Errorf("order %s, want %s", got, want)
	}
	for i, want := range []struct {
		kept, dropped int
		last          float64
	}{{2, 1, 3}, {2, 0, 2}, {1, 3, 4}} { // c: its last run was disturbed least
		o := out[i]
		if len(o.Kept) != want.kept || o.Dropped != want.dropped || o.Kept[len(o.Kept)-1].Elapsed != want.last {
			t.Errorf("%s: %+v, want %+v", o.Row, o, want)
		}
	}
}

func TestInterleaveFails(t *testing.T) {
	tries := 0
	broken := Case{Row: "x", Configuration: "y", Run: func(context.Context) (Run, error) {
		tries++
		return Run{}, errors.New("broken")
	}}
	if _, err := (Rounds{Count: 3, Retry: 1}).Interleave(t.Context(), []Case{broken}); err == nil || tries != 2 ||
		!strings.Contains(err.Error(), "x, y: broken") {
		t.Errorf("%d tries, %v", tries, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Rounds{Count: 3, Retry: 1}).Interleave(ctx, []Case{broken}); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancelling: %v", err)
	}
}
