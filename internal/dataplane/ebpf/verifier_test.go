// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	// budget is the most instructions that the verifier may walk for one program. Its limit is a
	// million.
	budget = 150_000
	// slack is how much more than the table says other kernels and small changes may take.
	slack = 1.25
)

// The verifier's work for each program stays far below its limit, and does not grow unseen: the
// table says how much it was, on the kernel that it names.
func TestVerifierBudget(t *testing.T) {
	needRoot(t)
	o, err := offline.Load(offline.Options{})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer o.Close()
	got := map[string]uint32{}
	four, six, err := o.LoadLimited()
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer four.Close()
	defer six.Close()
	names, err := o.Teacher()
	nettest.Must(t, err)
	defer names.Close()
	programs := maps.Clone(o.Programs)
	maps.Copy(programs, four.Programs)
	maps.Copy(programs, names.Programs)
	for _, of := range []map[string]*ebpf.Program{o.IPv6.Programs, six.Programs} {
		for name, p := range of {
			programs["ipv6/"+name] = p
		}
	}
	for name, p := range programs {
		info, err := p.Info()
		nettest.Must(t, err)
		n, ok := info.VerifiedInstructions()
		if !ok {
			t.Skip("this kernel does not tell (Linux 5.16 does)")
		}
		got[name] = n
		if n > budget {
			t.Errorf("%s: the verifier walks %d instructions, more than %d", name, n, budget)
		}
	}
	file := filepath.Join("testdata", "verifier.txt")
	if *update {
		var b strings.Builder
		fmt.Fprintf(&b, "# Instructions that the verifier walks, by program; Linux %s. go test -run TestVerifierBudget -update\n", kernel.Release())
		for _, name := range slices.Sorted(maps.Keys(got)) {
			fmt.Fprintf(&b, "%-27s %6d\n", name, got[name])
		}
		nettest.Must(t, os.MkdirAll("testdata", 0o755))
		nettest.Must(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	data, err := os.ReadFile(file)
	nettest.Must(t, err)
	want := map[string]uint32{}
	for line := range strings.Lines(string(data)) {
		var name string
		var n uint32
		if _, err := fmt.Sscan(line, &name, &n); err == nil {
			want[name] = n
		}
	}
	for name, n := range got {
		if was, ok := want[name]; !ok || float64(n) > slack*float64(was) {
			t.Errorf("%s: the verifier walks %d instructions, the table says %d: look why, then -update", name, n, was)
		}
	}
	if len(want) != len(got) {
		t.Errorf("%d programs, the table has %d", len(got), len(want))
	}
}

// This kernel takes the programs of both families. They are tried one at a time, with a pause after
// each, and ending in a pause leaves nothing to be tried.
func TestTry(t *testing.T) {
	t.Parallel()
	needRoot(t)
	want := 0
	for _, load := range []func() (*ebpf.CollectionSpec, error){abi.LoadWeir, abi.LoadWeir6} {
		spec, err := load()
		nettest.Must(t, err)
		want += len(spec.Programs)
		// These are loaded where policy, a limited pod, or a DSCP of a host endpoint, asks for
		// them.
		for _, name := range []string{object.ArriveProgram, object.EachProgram, object.LimitedProgram, object.LimitedToProgram, object.MarkedProgram, object.QueueProgram} {
			if spec.Programs[name] != nil {
				want--
			}
		}
	}
	log := slog.New(slog.DiscardHandler)
	pauses := 0
	nettest.Must(t, tryEach(log, func(took time.Duration) error {
		if pauses++; took <= 0 {
			t.Errorf("a program was verified in %v", took)
		}
		return nil
	}))
	if pauses != want {
		t.Errorf("%d pauses between %d programs", pauses, want)
	}
	ended := errors.New("ended")
	pauses = 0
	err := tryEach(log, func(time.Duration) error { pauses++; return ended })
	if pauses != 1 || !errors.Is(err, ended) || errors.Is(err, ErrRefused) {
		t.Errorf("ended in the first of %d pauses: %v", pauses, err)
	}
}
