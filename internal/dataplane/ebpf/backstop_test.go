// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

const (
	attackForeign = "another map is pinned in the place of one of Weir's while the agent runs"
	attackOnePin  = "one pin of many is removed while the agent runs"
)

// pinOf is the path at which a map of IPv4 is pinned.
func pinOf(d instance, name string) string { return filepath.Join(bpffs.MapsDir(d.opts.BPFFS), name) }

// isPinned fails the test unless a map is pinned by a name.
func isPinned(t *testing.T, d instance, name string, m *ebpf.Map) {
	t.Helper()
	there, err := ebpf.LoadPinnedMap(pinOf(d, name), nil)
	nettest.Must(t, err)
	defer there.Close()
	if !sameMapID(there, m) {
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
		isPinned(t, d, name, d.loaded.Maps[name])
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
	for name, m := range d.loaded.PinnedMaps() {
		nettest.Must(t, os.Remove(pinOf(d, name)))
		d.check(false)
		isPinned(t, d, name, m)
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

// slowPins are the pins of CallsOfSlow, each with the program that is called by it.
func slowPins(t *testing.T, d instance) map[string]uint32 {
	t.Helper()
	pins, err := filepath.Glob(pinOf(d, object.CallsOfSlow+"*"))
	nettest.Must(t, err)
	out := map[string]uint32{}
	for _, pin := range pins {
		m, err := ebpf.LoadPinnedMap(pin, nil)
		nettest.Must(t, err)
		var id uint32
		if err := m.Lookup(uint32(0), &id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
		out[pin] = id
		nettest.Must(t, m.Close())
	}
	return out
}

// TestSlowPathOfEarlierAgent: programs of an earlier agent call the slow path that came with them,
// which no agent holds any more, until all of them are replaced. Then it goes.
func TestSlowPathOfEarlierAgent(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	earlier := slowPins(t, d)
	nettest.Must(t, d.Close())
	goOn := b.hold()
	d = b.open(t)
	if err := d.Apply(t.Context(), s, nodestate.All()); !errors.Is(err, dataplane.ErrUnfinished) {
		t.Fatal(err)
	}
	meanwhile := slowPins(t, d)
	goOn()
	nettest.Must(t, d.Loaded(t.Context()))
	applied(t, d, s)
	later := slowPins(t, d)
	if len(earlier) != 1 || len(meanwhile) != 2 || len(later) != 1 {
		t.Fatalf("pins: %v, meanwhile %v, later %v", earlier, meanwhile, later)
	}
	for pin, id := range earlier {
		if id == 0 || meanwhile[pin] != id || later[pin] != 0 {
			t.Errorf("program %d of %s; meanwhile %d, later %d", id, pin, meanwhile[pin], later[pin])
		}
	}
	for pin, id := range later {
		if id == 0 || meanwhile[pin] != 0 {
			t.Errorf("program %d of %s; meanwhile %d", id, pin, meanwhile[pin])
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
