// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// hold makes drivers of a bench load programs in the background, when the returned function is
// called.
func (b *bench) hold() (goOn func()) {
	held := make(chan struct{})
	b.edit = func(o *Options) { o.InBackground, o.BeforeLoad = true, func() { <-held } }
	return func() { close(held) }
}

// TestTablesBeforePrograms: a state is in the maps of an earlier run before programs are loaded;
// what is attached, and our devices, wait for them.
func TestTablesBeforePrograms(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	links, epoch := linkIDs(t, d), d.Status().Epoch
	nettest.Must(t, d.Close())
	changed := *s
	changed.Routes = map[netip.Prefix]nodestate.Route{netip.MustParsePrefix("10.244.77.0/26"): {Pool: true}}
	goOn := b.hold()
	d = b.open(t)
	for range 2 {
		var waiting *dataplane.Waiting
		if err := d.Apply(t.Context(), &changed, nodestate.All()); !errors.As(err, &waiting) || len(dataplane.Failures(err)) > 0 {
			t.Fatalf("an Apply before programs are loaded: %v", err)
		}
		got, err := d.Load()
		nettest.Must(t, err)
		if len(got.Routes) != 1 || d.Status().Epoch != epoch+1 {
			t.Errorf("routes %v, epoch %d after %d", got.Routes, d.Status().Epoch, epoch)
		}
	}
	if len(d.programs.At) > 0 || d.started {
		t.Error("programs were attached before they were loaded")
	}
	var now abi.Settings[abi.Ip4]
	nettest.Must(t, d.loaded.Maps["weir_settings"].Lookup(new(uint32), unsafe.Pointer(&now)))
	if now.HostIfindex == 0 || int(now.HostIfindex) != b.link(hostdev.HostDevice).Attrs().Index {
		t.Errorf("the settings say that weir0 is interface %d", now.HostIfindex)
	}
	goOn()
	nettest.Must(t, d.Loaded(t.Context()))
	applied(t, d, &changed)
	if after := linkIDs(t, d); len(after) != len(links) {
		t.Errorf("links before %v, after %v", links, after)
	}
	if broken := d.programs.Broken(); len(broken) != 0 || d.Status().Epoch != epoch+1 {
		t.Errorf("broken: %v, epoch %d", broken, d.Status().Epoch)
	}
}

// TestCloseBeforeProgramsAreLoaded: an agent that ends meanwhile does not wait for the verifier.
func TestCloseBeforeProgramsAreLoaded(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	nettest.Must(t, d.Close())
	goOn := b.hold()
	d = b.open(t)
	if err := d.Apply(t.Context(), s, nodestate.All()); !errors.Is(err, dataplane.ErrUnfinished) {
		t.Fatal(err)
	}
	p := d.loading
	nettest.Must(t, d.Close())
	goOn()
	<-p.done
	b.edit = nil
	d = b.open(t)
	applied(t, d, s)
	if broken := d.programs.Broken(); len(broken) != 0 {
		t.Errorf("broken: %v", broken)
	}
}

// TestProgramsBeforeTables: where the maps are not those by which programs of an earlier run
// evaluate packets, ours are loaded first.
func TestProgramsBeforeTables(t *testing.T) {
	b := newBench(t)
	settings := filepath.Join(bpffs.MapsDir(b.bpffs), "weir_settings")
	changeFlags := func(set uint32) {
		m, err := ebpf.LoadPinnedMap(settings, nil)
		nettest.Must(t, err)
		defer m.Close()
		var zero uint32
		var v abi.Settings[abi.Ip4]
		nettest.Must(t, m.Lookup(&zero, unsafe.Pointer(&v)))
		v.Flags |= set
		nettest.Must(t, m.Update(&zero, unsafe.Pointer(&v), ebpf.UpdateAny))
	}
	for _, c := range []struct {
		name   string
		before func()
		edit   func(*Options)
	}{
		{name: "the programs have another map", before: func() {
			path := filepath.Join(bpffs.MapsDir(b.bpffs), "weir_addrs")
			old, err := ebpf.LoadPinnedMap(path, nil)
			nettest.Must(t, err)
			defer old.Close()
			spec, err := abi.LoadWeir()
			nettest.Must(t, err)
			other, err := ebpf.NewMap(spec.Maps["weir_addrs"])
			nettest.Must(t, err)
			defer other.Close()
			nettest.Must(t, bpffs.PinOver(other, path))
		}},
		{name: "a map is missing", before: func() { nettest.Must(t, os.Remove(filepath.Join(bpffs.MapsDir(b.bpffs), "weir_routes"))) }},
		{name: "a map changes its size", edit: func(o *Options) { o.Sizes["weir_services"] = 1000 }},
		{name: "another layout is there", before: func() {
			nettest.Must(t, os.MkdirAll(filepath.Join(b.bpffs, strconv.Itoa(abi.Number-1), "maps"), 0o700))
		}},
		{name: "a change of the data plane was broken off", before: func() { changeFlags(abi.SetHandOver) }},
		{name: "no program is attached", before: func() {
			nettest.Must(t, os.RemoveAll(bpffs.LinksDir(b.bpffs)))
		}},
		{name: "connections are taken over", edit: func(o *Options) { o.Import = flowhandover.ImportTranslated }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.edit = nil
			d := b.open(t)
			applied(t, d, sample(b))
			nettest.Must(t, d.Close())
			if c.before != nil {
				c.before()
			}
			b.edit = func(o *Options) {
				o.InBackground, o.BeforeLoad = true, func() { t.Error("programs are loaded in the background") }
				if c.edit != nil {
					c.edit(o)
				}
			}
			d = b.open(t)
			if d.loading != nil {
				t.Fatal("tables are written first")
			}
			applied(t, d, sample(b))
			nettest.Must(t, d.Close())
		})
	}
}
