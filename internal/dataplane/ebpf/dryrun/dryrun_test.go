// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/nettest"
)

// The kernel's verifier says it: no program writes to a map that a dry run shares with the node.
func TestDryRunsCannotWriteLiveMaps(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	load := func(read func() (*ebpf.CollectionSpec, error), readOnly []string) error {
		spec, err := read()
		nettest.Must(t, err)
		nettest.Must(t, object.Specialize(spec, nil, object.Constants{Trace: true, SetRetval: true}))
		for name, ms := range spec.Maps {
			if object.IsStateful(name) {
				shrink(ms)
			}
			if slices.Contains(readOnly, name) {
				ms.Flags |= unix.BPF_F_RDONLY_PROG
			}
		}
		c, err := ebpf.NewCollection(spec)
		if err == nil {
			c.Close()
		}
		return err
	}
	for name, read := range map[string]func() (*ebpf.CollectionSpec, error){bpffs.IPv4: abi.LoadWeir, bpffs.IPv6: abi.LoadWeir6} {
		if err := load(read, liveMaps); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, m := range liveMaps {
		if object.IsStateful(m) || object.IsUnpinned(m) {
			t.Errorf("map %s is what packets leave behind, and shared", m)
		}
	}
	if err := load(abi.LoadWeir, []string{"weir_flows"}); err == nil {
		t.Error("the verifier lets a program write a map that no program may write: this test proves nothing")
	}
}

// What says how the node should be is shared, or a dry run would decide by an empty table: every
// map is of one kind.
func TestDryRunsShareDesiredState(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func() (*ebpf.CollectionSpec, error){bpffs.IPv4: abi.LoadWeir, bpffs.IPv6: abi.LoadWeir6} {
		spec, err := read()
		nettest.Must(t, err)
		for m := range spec.Maps {
			if m == object.Queues || m == object.Limits || m == object.Departures || m == object.LimitedOfIPv6 {
				continue // of the programs of limited pods, which are not run
			}
			left := object.IsStateful(m) || object.IsUnpinned(m) || m == object.ProgramsOfIPv6 || m == object.UntrackedOfIPv6 || m == object.ProgramOfIPIP || m == object.CallsOfNames
			if live := slices.Contains(liveMaps, m); left == live {
				t.Errorf("%s: map %s is what packets leave behind: %t, and shared: %t; desired state belongs into liveMaps", name, m, left, live)
			}
		}
	}
}
