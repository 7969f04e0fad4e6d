package bench

import (
	"strings"
	"testing"
	"time"
)

func TestParseCPU(t *testing.T) {
	const stat = "cpu  100 20 30 4000 500 6 7 80 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\nintr 5\n"
	got, err := parseCPU(strings.NewReader(stat))
	if want := (CPUTime{Busy: 1630 * time.Millisecond, User: 1200 * time.Millisecond}); err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7\n", "cpu  1 x 3 4 5 6 7 8\n"} {
		if _, err := parseCPU(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestWindowCountsWork(t *testing.T) {
	w, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); time.Since(start) < 100*time.Millisecond; {
	}
	var r Run
	if err := w.Close(&r, 0); err != nil {
		t.Fatal(err)
	}
	if r.Elapsed < 0.1 || r.Busy < 0.05 || r.Others < 0.3 {
		t.Errorf("100 ms of work on a CPU show as %+v", r)
	}
}
