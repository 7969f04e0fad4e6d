// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	for start := ownCPU(t); ownCPU(t)-start < 100*time.Millisecond; {
	}
	var r Run
	if err := w.Close(&r, 0); err != nil {
		t.Fatal(err)
	}
	if others := 0.05 / r.Elapsed; r.Elapsed < 0.05 || r.Busy < 0.05 || r.Others < others {
		t.Errorf("100 ms of work on a CPU show as %+v", r)
	}
}

// ownCPU is the CPU time of this process. A busy machine gives it little of the time that passes.
func ownCPU(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
