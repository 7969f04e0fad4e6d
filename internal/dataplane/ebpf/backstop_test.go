// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/nettest"
)

const (
	attackForeign = "another map is pinned in the place of one of Weir's while the agent runs"
	attackOnePin  = "one pin of many is removed while the agent runs"
)

// pinOf is the path at which a map of IPv4 is pinned.
func pinOf(d instance, name string) string { return filepath.Join(bpffs.MapsDir(d.opts.BPFFS), name) }

// isPinned fails the test unless a map is pinned where it belongs.
func isPinned(t *testing.T, d instance, name string) {
	t.Helper()
	there, err := ebpf.LoadPinnedMap(pinOf(d, name), nil)
	nettest.Must(t, err)
	defer there.Close()
	if !sameMapID(there, d.loaded.Maps[name]) {
		t.Errorf("what is pinned as %s is another map", name)
	}
}

// TestHostileForeignPin: who pins a map of another layout, or an empty one, in the place of one of
// Weir's does not get the next agent to take it over.
func TestHostileForeignPin(t *testing.T) {
	hostile.Record(t, attackForeign, hostile.Operator, hostile.EBPF, hostile.Both)
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	d.check(false)
	empty := d.loaded.Maps["weir_addrs"]
	for name, spec := range map[string]*ebpf.MapSpec{
		"weir_policy": {Name: "weir_policy", Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1},
		"weir_addrs":  {Name: "weir_addrs", Type: empty.Type(), KeySize: empty.KeySize(), ValueSize: empty.ValueSize(), MaxEntries: empty.MaxEntries(), Flags: empty.Flags()},
	} {
		m, err := ebpf.NewMap(spec)
		nettest.Must(t, err)
		nettest.Must(t, os.Remove(pinOf(d, name)))
		nettest.Must(t, m.Pin(pinOf(d, name)))
		nettest.Must(t, m.Close())
		d.check(false)
		isPinned(t, d, name)
	}
	nettest.Must(t, d.Close())
	d = b.open(t)
	applied(t, d, s)
	if st := d.Status(); st.Writes != 0 {
		t.Errorf("the next agent writes %d entries: it found other maps", st.Writes)
	}
}

// TestHostileOnePin: one pin that goes comes back, of a map and of a link, whichever it is.
func TestHostileOnePin(t *testing.T) {
	hostile.Record(t, attackOnePin, hostile.Operator, hostile.EBPF, hostile.Both)
	b := newBench(t)
	d := b.open(t)
	applied(t, d, sample(b))
	d.check(false)
	for name := range d.loaded.Maps {
		if object.IsUnpinned(name) {
			continue
		}
		nettest.Must(t, os.Remove(pinOf(d, name)))
		d.check(false)
		isPinned(t, d, name)
	}
	for s, at := range d.programs.At {
		if !at.Pinned() {
			continue
		}
		path := filepath.Join(d.programs.Dir, s.Pin())
		nettest.Must(t, os.Remove(path))
		d.check(false)
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// An interface that began with links, because it was there before, gets filters behind them when
// things are quiet for long.
func TestBackstopComesLater(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	applied(t, d, sample(b))
	pod := attach.Site{Ifindex: b.ifaces[0].Index, Hook: attach.FromWorkload}
	d.check(false)
	if err := (attach.Filter{Name: attach.FilterName(pod)}).Check(pod, 0); err == nil {
		t.Fatal("it has a filter at once: its qdisc made it drop packets")
	}
	for range 2 * len(b.ifaces) {
		d.attached = time.Now().Add(-2 * backstopAfter)
		d.check(false)
	}
	for s := range d.programs.At {
		if !attach.OfWorkload(s.Hook) {
			continue
		}
		if err := (attach.Filter{Name: attach.FilterName(s)}).Check(s, d.programs.Ids[s.Hook.Name]); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	nettest.Must(t, Remove(d.opts.BPFFS))
	if err := (attach.Filter{Name: attach.FilterName(pod)}).Check(pod, 0); err == nil {
		t.Error("it stays when the data plane is removed")
	}
}
