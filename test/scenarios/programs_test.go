// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/test/scenarios/programs"
)

// TestPrograms plays every scenario on the loaded programs, with the oracle alongside them.
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
			if err := timely(t, r, 400*time.Millisecond, func() error { return read(t, name).Play(r.New) }); err != nil {
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

// timely plays on the programs, whose clock goes on by itself while the oracle's only goes where it
// is moved. What disagreed and took so long that this may be why says nothing, and is played again.
// The shortest time in a scenario is 0.75 s.
func timely(t *testing.T, r *programs.Runner, limit time.Duration, play func() error) error {
	t.Helper()
	for tries, skipped := 1, r.Skipped; ; tries++ {
		r.Skipped = skipped
		begin := time.Now()
		err := play()
		took := time.Since(begin)
		if err == nil || took < limit || tries == 20 {
			return err
		}
		t.Logf("played again, it took %s: %v", took, err)
		if err := r.Reset(); err != nil {
			return err
		}
	}
}

// loaded are the programs that tests play on one after the other: to load them takes as long as
// some thirty scenarios. A test that fails leaves none to the next.
var loaded *programs.Runner

func newRunner(t *testing.T) *programs.Runner {
	t.Helper()
	skipInShort(t)
	nettest.NeedRoot(t, "loading programs")
	if loaded == nil {
		var err error
		if loaded, err = programs.NewRunner(); err != nil {
			t.Fatal(err)
		}
	}
	r := loaded
	r.Skipped = 0
	t.Cleanup(func() {
		err := r.Reset()
		if t.Failed() && loaded == r {
			loaded, err = nil, errors.Join(err, r.Close())
		}
		if err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestMain(m *testing.M) {
	code := m.Run()
	if loaded != nil {
		if err := loaded.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "unloading programs:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
