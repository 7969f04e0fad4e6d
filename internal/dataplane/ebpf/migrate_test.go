// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/weir-net/weir/internal/dataplane/conformance"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// The structures of layout 1, as they were.
type (
	oldSvcKey struct {
		Addr         [4]byte
		Port         uint16
		Proto, Scope uint8
	}
	oldBackend struct {
		Addr        [4]byte
		Port, Flags uint16
	}
	oldFlowKey struct {
		Saddr, Daddr [4]byte
		Sport, Dport uint16
		Proto        uint8
		Pad          [3]uint8
	}
	oldFlowValue struct {
		Epoch, Seen               uint32
		Saddr, Daddr              [4]byte
		Sport, Dport              uint16
		Action, State, Flags, Pad uint8
		Iif, Ifindex              uint32
		Nexthop                   [4]byte
		Rule                      uint32
		Mac                       [6]uint8
		Pad2                      uint16
		Svc                       oldSvcKey
		Backend                   oldBackend
	}
)

// layout makes a structure of members that follow each other without gaps.
func layout(name string, members ...btf.Member) *btf.Struct {
	s := &btf.Struct{Name: name}
	for _, m := range members {
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			panic(err)
		}
		m.Offset = btf.Bits(s.Size * 8)
		s.Size += uint32(size)
		s.Members = append(s.Members, m)
	}
	return s
}

func oldTypes() (key, value *btf.Struct) {
	u8, u16, u32 := &btf.Int{Name: "__u8", Size: 1}, &btf.Int{Name: "__u16", Size: 2}, &btf.Int{Name: "__u32", Size: 4}
	addr := &btf.Typedef{Name: "ip_addr", Type: &btf.Typedef{Name: "__be32", Type: u32}}
	of := func(t btf.Type, names ...string) (out []btf.Member) {
		for _, n := range names {
			out = append(out, btf.Member{Name: n, Type: t})
		}
		return out
	}
	join := func(lists ...[]btf.Member) (out []btf.Member) {
		for _, l := range lists {
			out = append(out, l...)
		}
		return out
	}
	array := func(n uint32) btf.Type { return &btf.Array{Index: u32, Type: u8, Nelems: n} }
	svc := layout("svc_key", join(of(addr, "addr"), of(u16, "port"), of(u8, "proto", "scope"))...)
	back := layout("backend", join(of(addr, "addr"), of(u16, "port", "flags"))...)
	key = layout("flow_key", join(of(addr, "saddr", "daddr"), of(u16, "sport", "dport"), of(u8, "proto"), of(array(3), "pad"))...)
	value = layout("flow_value", join(of(u32, "epoch", "seen"), of(addr, "saddr", "daddr"), of(u16, "sport", "dport"),
		of(u8, "action", "state", "flags", "pad"), of(u32, "iif", "ifindex"), of(addr, "nexthop"), of(u32, "rule"), of(array(6), "mac"),
		of(u16, "pad2"), of(svc, "svc"), of(back, "backend"))...)
	return key, value
}

// TestFlowsSurviveAnotherLayout starts a driver where the maps of layout 1 are pinned, with flows
// in them.
func TestFlowsSurviveAnotherLayout(t *testing.T) {
	b := newBench(t)
	dir := filepath.Join(b.bpffs, "1", "maps")
	nettest.Must(t, kernel.EnsureBPFFS("", dir))
	keyType, valueType := oldTypes()
	flows, err := ebpf.NewMap(&ebpf.MapSpec{Name: "weir_flows", Type: ebpf.LRUHash, KeySize: keyType.Size, ValueSize: valueType.Size,
		MaxEntries: 1024, Key: keyType, Value: valueType})
	nettest.Must(t, err)
	defer flows.Close()
	nettest.Must(t, flows.Pin(filepath.Join(dir, "weir_flows")))
	u32 := &btf.Int{Name: "__u32", Size: 4}
	settingsType := layout("settings", btf.Member{Name: "epoch", Type: u32}, btf.Member{Name: "flags", Type: u32})
	settings, err := ebpf.NewMap(&ebpf.MapSpec{Name: "weir_settings", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Key: u32, Value: settingsType})
	nettest.Must(t, err)
	defer settings.Close()
	nettest.Must(t, settings.Pin(filepath.Join(dir, "weir_settings")))
	nettest.Must(t, settings.Put(uint32(0), [2]uint32{41, 0}))

	key := oldFlowKey{Saddr: [4]byte{10, 244, 1, 2}, Daddr: [4]byte{10, 96, 0, 1}, Sport: 0x1234, Dport: 0x5000, Proto: 6}
	value := oldFlowValue{Epoch: 41, Seen: 77, Saddr: key.Saddr, Daddr: [4]byte{10, 244, 2, 9}, Sport: 0x1234, Dport: 0x901f, Action: 2, State: 1, Flags: 2,
		Iif: 5, Ifindex: 6, Nexthop: [4]byte{172, 31, 1, 9}, Rule: 99, Mac: [6]byte{2, 0, 0, 0, 0, 1},
		Svc: oldSvcKey{Addr: key.Daddr, Port: 0x5000, Proto: 6}, Backend: oldBackend{Addr: [4]byte{10, 244, 2, 9}, Port: 0x901f}}
	nettest.Must(t, flows.Put(key, value))
	outside, fromOutside := oldFlowKey{Saddr: key.Daddr, Daddr: key.Saddr, Sport: 1, Proto: 6}, value
	fromOutside.Iif = 0
	nettest.Must(t, flows.Put(outside, fromOutside))

	d := b.open(t)
	// Until its first state nothing of the earlier version is touched.
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the old maps are gone before the programs were replaced: %v", err)
	}
	nettest.Must(t, d.Apply(t.Context(), conformance.Random(1, nil), nodestate.All()))
	keyOf := func(k oldFlowKey) abi.FlowKey[abi.Ip4] {
		return abi.FlowKey[abi.Ip4]{Saddr: k.Saddr, Daddr: k.Daddr, Sport: k.Sport, Dport: k.Dport, Proto: k.Proto}
	}
	var got abi.FlowValue[abi.Ip4]
	if err := flowtable.LookUpFlow(d.loaded.Maps["weir_flows"], keyOf(key), &got); err != nil {
		t.Fatalf("the flow is lost: %v", err)
	}
	if got.Epoch != 41 || got.Seen != 77 || got.Sport != value.Sport || got.Dport != value.Dport || got.Action != 2 || got.State != 1 || got.Flags != 2 ||
		got.From != abi.FromPod || got.EntersBy() != 5 || got.Ifindex != 6 || got.Rule != 99 || got.Mac != value.Mac {
		t.Errorf("the flow is %+v, was %+v", got, value)
	}
	var unknown abi.FlowValue[abi.Ip4]
	if err := flowtable.LookUpFlow(d.loaded.Maps["weir_flows"], keyOf(outside), &unknown); err != nil || unknown.From != 0 {
		t.Errorf("packets of a flow from outside come from %d (%v), though nobody has checked where from", unknown.From, err)
	}
	if got.Daddr != value.Daddr || got.Svc.Port != value.Svc.Port || got.Backend.Port != value.Backend.Port {
		t.Errorf("the flow leads to %v %+v %+v", got.Daddr, got.Svc, got.Backend)
	}
	if epoch := d.tables.Epoch(); epoch <= 41 {
		t.Errorf("the epoch is %d: flows of epoch 41 would not be judged anew", epoch)
	}
	if _, err := os.Stat(filepath.Dir(dir)); !os.IsNotExist(err) {
		t.Errorf("the old maps are left: %v", err)
	}
}

// TestFlowsSurviveAnotherSize changes the size of the connection table, lets the agent die in the
// middle, and changes it again.
func TestFlowsSurviveAnotherSize(t *testing.T) {
	b := newBench(t)
	st := sample(b)
	flow := func(i int) abi.FlowKey[abi.Ip4] {
		return abi.FlowKey[abi.Ip4]{Sport: uint16(i), Dport: uint16(i >> 16), Proto: 6}
	}
	open := func(flows, affinity uint32) instance {
		b.edit = func(o *Options) { o.Sizes["weir_flows"], o.Sizes["weir_affinity"] = flows, affinity }
		return b.open(t)
	}
	has := func(d instance, first, n int) {
		t.Helper()
		for i := first; i < first+n; i++ {
			var v abi.FlowValue[abi.Ip4]
			if err := flowtable.LookUpFlow(d.loaded.Maps["weir_flows"], flow(i), &v); err != nil || v.Seen != uint32(i) {
				t.Fatalf("flow %d: %v, %+v", i, err, v)
			}
		}
	}
	size := func(d instance, want uint32) {
		t.Helper()
		if n := d.loaded.Maps["weir_flows"].MaxEntries(); n != want {
			t.Errorf("there is room for %d flows, want %d", n, want)
		}
	}
	const n = 5000
	d := open(16384, 1024)
	applied(t, d, st)
	for i := range n {
		addFlow(t, d.loaded.Maps["weir_flows"], flow(i), abi.FlowValue[abi.Ip4]{Seen: uint32(i)})
	}
	nettest.Must(t, d.loaded.Maps["weir_affinity"].Put(abi.WeirAffinityKey{Svc: abi.WeirSvcKey{Port: 7}}, abi.WeirAffinityValue{Seen: 9}))
	before := d
	// Killed before its first state: the programs of the one before go on, and so do their maps.
	d = open(32768, 2048)
	addFlow(t, before.loaded.Maps["weir_flows"], flow(n), abi.FlowValue[abi.Ip4]{Seen: n})
	nettest.Must(t, d.Close())
	// The next one finishes that before it begins anything else.
	d = open(65536, 2048)
	size(d, 32768)
	applied(t, d, st)
	has(d, 0, n+1)
	nettest.Must(t, before.Close())
	nettest.Must(t, d.Close())
	d = open(65536, 1024)
	applied(t, d, st)
	size(d, 65536)
	has(d, 0, n+1)
	var a abi.WeirAffinityValue
	if err := d.loaded.Maps["weir_affinity"].Lookup(abi.WeirAffinityKey{Svc: abi.WeirSvcKey{Port: 7}}, &a); err != nil || a.Seen != 9 {
		t.Errorf("an affinity is lost: %v, %+v", err, a)
	}
	if _, err := os.Stat(filepath.Join(b.bpffs, "0")); !os.IsNotExist(err) {
		t.Errorf("the old maps are left: %v", err)
	}
	// Nothing changes any more: the same map is used.
	info, err := d.loaded.Maps["weir_flows"].Info()
	nettest.Must(t, err)
	nettest.Must(t, d.Close())
	d = open(65536, 1024)
	again, err := d.loaded.Maps["weir_flows"].Info()
	nettest.Must(t, err)
	was, _ := info.ID()
	if is, ok := again.ID(); !ok || is != was {
		t.Error("the map is made anew although its size is the same")
	}
}

// TestPreloadedForAnotherLayout starts a driver where the maps of layout 1 are pinned, with
// programs that were loaded while another driver worked by these: none is loaded again, and with
// other sizes all are.
func TestPreloadedForAnotherLayout(t *testing.T) {
	b := newBench(t)
	dir := filepath.Join(b.bpffs, "1", "maps")
	nettest.Must(t, kernel.EnsureBPFFS("", dir))
	settings, err := ebpf.NewMap(&ebpf.MapSpec{Name: "weir_settings", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	nettest.Must(t, err)
	defer settings.Close()
	nettest.Must(t, settings.Pin(filepath.Join(dir, "weir_settings")))
	nettest.Must(t, settings.Put(uint32(0), [2]uint32{41, 0}))
	nettest.Must(t, kernel.EnsureBPFFS("", filepath.Join(b.bpffs, "1", "maps6")))
	six, err := settings.Clone()
	nettest.Must(t, err)
	defer six.Close()
	nettest.Must(t, six.Pin(filepath.Join(b.bpffs, "1", "maps6", "weir_settings")))
	options := b.options(t)
	for _, c := range []struct {
		name  string
		flows uint32
		taken bool
	}{{"other sizes", options.Sizes["weir_flows"] * 2, false}, {"the same options", options.Sizes["weir_flows"], true}} {
		t.Run(c.name, func(t *testing.T) {
			o := options
			o.Sizes = maps.Clone(options.Sizes)
			o.Sizes["weir_flows"] = c.flows
			p, err := Preload(o)
			nettest.Must(t, err)
			if p == nil {
				t.Fatal("nothing was loaded")
			}
			defer p.Close()
			if _, err := os.Stat(filepath.Join(bpffs.MapsDir(b.bpffs), "weir_settings")); err == nil {
				t.Error("maps have pins before the place of the other driver was taken")
			}
			before := newestProgram(t)
			works := options
			works.Preloaded = p
			d, err := New(works)
			nettest.Must(t, err)
			defer d.Close()
			nettest.Must(t, d.addIPv6(false))
			for family, l := range map[string]*object.Collection{bpffs.IPv4: d.loaded, bpffs.IPv6: d.six} {
				id, err := attach.ProgramID(l.Programs["weir_from_workload"])
				nettest.Must(t, err)
				if taken := id < before; taken != c.taken {
					t.Errorf("%s: the programs that were loaded before are used: %v, want %v", family, taken, c.taken)
				}
			}
			if _, err := os.Stat(filepath.Join(bpffs.MapsDir(b.bpffs), "weir_settings")); err != nil {
				t.Error("maps have no pins")
			}
			nettest.Must(t, errors.Join(object.UnpinAll(bpffs.MapsDir(b.bpffs)), object.UnpinAll(bpffs.Maps6Dir(b.bpffs))))
		})
	}
}

// newestProgram loads a program and returns its number: what is loaded later has a greater one.
func newestProgram(t *testing.T) ebpf.ProgramID {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	nettest.Must(t, err)
	defer p.Close()
	id, err := attach.ProgramID(p)
	nettest.Must(t, err)
	return id
}

// TestFlowsSurviveRecords switches flow records on and off again: entries have room for them only
// while they are on, and open flows keep what they are.
func TestFlowsSurviveRecords(t *testing.T) {
	b := newBench(t)
	st := sample(b)
	key := abi.FlowKey[abi.Ip4]{Saddr: abi.Ip4{10, 244, 1, 2}, Daddr: abi.Ip4{10, 96, 0, 1}, Sport: 1, Dport: 2, Proto: 6}
	want := abi.FlowValue[abi.Ip4]{Seen: 7, Saddr: key.Saddr, Daddr: abi.Ip4{10, 244, 2, 9}, Sport: 1, Dport: 3, Mtu: 1450,
		Svc: abi.SvcKey[abi.Ip4]{Addr: key.Daddr, Port: 2, Proto: 6}, Backend: abi.Backend[abi.Ip4]{Addr: abi.Ip4{10, 244, 2, 9}, Port: 3, Flags: 1}}
	for i, c := range []struct {
		records time.Duration
		size    uint32
	}{{0, 64}, {time.Minute, 128}, {0, 64}} {
		b.edit = func(o *Options) { o.FlowRecords = c.records }
		d := b.open(t)
		applied(t, d, st)
		m := d.loaded.Maps["weir_flows"]
		if m.ValueSize() != c.size {
			t.Errorf("with records each %s entries have %d bytes, want %d", c.records, m.ValueSize(), c.size)
		}
		if i == 0 {
			addFlow(t, m, key, want)
		}
		var got abi.FlowValue[abi.Ip4]
		if err := flowtable.LookUpFlow(m, key, &got); err != nil || got != want {
			t.Errorf("with records each %s the flow is %+v, was %+v (%v)", c.records, got, want, err)
		}
		nettest.Must(t, d.Close())
	}
}
