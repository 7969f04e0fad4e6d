package scenarios_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weir-net/weir/test/scenarios/programs"
)

// TestPrograms plays every scenario on the loaded programs, with the oracle beside them.
func TestPrograms(t *testing.T) {
	r := newRunner(t)
	var skips strings.Builder
	played := 0
	for _, name := range files(t) {
		r.Skipped = 0
		t.Run(strings.TrimSuffix(name, ".txtar"), func(t *testing.T) {
			played++
			defer func() {
				if err := r.Reset(); err != nil {
					t.Error(err)
				}
			}()
			if err := read(t, name).Play(r.New); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		})
		if r.Skipped > 0 {
			fmt.Fprintf(&skips, "programs: %s: %d lines about sockets, which BPF_PROG_TEST_RUN cannot run\n", name, r.Skipped)
		}
	}
	golden, err := os.ReadFile("skips.golden")
	if err != nil {
		t.Fatal(err)
	}
	if played == len(files(t)) && !t.Failed() && skips.String() != string(golden) {
		t.Errorf("what is skipped changed; if that is right, skips.golden should be\n%s", &skips)
	}
}

func newRunner(t *testing.T) *programs.Runner {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("loading programs needs root: run with sudo")
	}
	r, err := programs.NewRunner()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}
