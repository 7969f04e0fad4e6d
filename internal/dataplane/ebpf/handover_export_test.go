// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestExportAndImport: what the maps of a driver know when it has gone is known to connection
// tracking then, its programs pass everything, and a driver that begins with empty maps knows it
// again, and connection tracking no more translates it.
func TestExportAndImport(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	now, err := d.now()
	nettest.Must(t, err)
	asked, after := flowKeyOf(unix.IPPROTO_TCP, "10.244.1.2:40000", "10.96.0.1:80"), flowKeyOf(unix.IPPROTO_TCP, "10.244.1.2:40000", "10.244.1.3:8080")
	there, here := flowTo(after, abi.StateReplied, abi.FlowRewrite, abi.ActNeigh), flowTo(asked.Reversed(), abi.StateReplied, abi.FlowRewrite|abi.FlowReply, abi.ActNeigh)
	there.Seen, here.Seen = now, now
	for k, v := range map[abi.FlowKey[abi.Ip4]]abi.FlowValue[abi.Ip4]{asked: there, after.Reversed(): here} {
		if put, err := flowtable.AddFlow(d.loaded.Maps["weir_flows"], k, v); !put || err != nil {
			t.Fatalf("adding a flow: %v, %v", put, err)
		}
	}
	nettest.Must(t, d.Close())

	nettest.Must(t, flowhandover.ExportFlows(context.Background(), b.bpffs, nil, slog.New(slog.DiscardHandler)))
	table, err := conntrack.Open()
	nettest.Must(t, err)
	defer table.Close()
	want, _ := flowhandover.ConntrackEntry(asked, there, flowhandover.MinTimeout)
	got, found, err := table.Find(want.Reply)
	if err != nil || !found || got.Orig != want.Orig || got.Reply != want.Reply || got.TCP != want.TCP {
		t.Fatalf("connection tracking knows %+v (%v, %v), want %+v", got, found, err, want)
	}
	for _, name := range programsInLinks(t, b.bpffs) {
		if name != "weir_nothing" {
			t.Errorf("program %s is still in a link", name)
		}
	}
	// The maps are no more kept by anybody: they are not exported of again.
	nettest.Must(t, table.Delete(want.Orig))
	nettest.Must(t, flowhandover.ExportFlows(context.Background(), b.bpffs, nil, slog.New(slog.DiscardHandler)))
	if got, found, err := table.Find(want.Orig); found || err != nil {
		t.Errorf("a connection that ended meanwhile is told of again: %+v (%v)", got, err)
	}
	_, err = table.Put(want, func(conntrack.Entry) bool { return false })
	nettest.Must(t, err)
	_, err = conntrack.Hold(context.Background(), conntrack.HoldOptions{InterfacePrefix: "cali"})
	nettest.Must(t, err)
	nettest.Must(t, Remove(b.bpffs))
	if heldBack(t) {
		t.Error("packets are still held back")
	}

	b.edit = func(o *Options) { o.Import = flowhandover.ImportAll }
	d = b.open(t)
	applied(t, d, s)
	var v abi.FlowValue[abi.Ip4]
	if err := flowtable.LookUpFlow(d.loaded.Maps["weir_flows"], asked, &v); err != nil || v.After(asked.Proto) != after || v.Epoch == d.tables.Epoch() {
		t.Errorf("the flow is taken over as %+v (%v)", v, err)
	}
	if err := flowtable.LookUpFlow(d.loaded.Maps["weir_flows"], after.Reversed(), &v); err != nil || v.After(asked.Proto) != asked.Reversed() {
		t.Errorf("its answers are taken over as %+v (%v)", v, err)
	}
	if got, found, err := table.Find(want.Orig); found || err != nil {
		t.Errorf("connection tracking still has %+v (%v)", got, err)
	}
}

// switchTable reports whether the table of a change is there, and whether it holds packets back.
func switchTable(t *testing.T) (there, holds bool) {
	t.Helper()
	conn, err := nftables.New()
	nettest.Must(t, err)
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	nettest.Must(t, err)
	at := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == "weir-switch" })
	if at < 0 {
		return false, false
	}
	sets, err := conn.GetSets(tables[at])
	nettest.Must(t, err)
	return true, slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == "held" })
}

// heldBack reports whether a table that holds packets back, or leads them, is there.
func heldBack(t *testing.T) bool {
	t.Helper()
	there, _ := switchTable(t)
	return there
}

// TestExportFlowsBrokenOff: where the agent ends meanwhile, programs go on, their flows stay, and
// nothing is held back.
func TestExportFlowsBrokenOff(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	applied(t, d, sample(b))
	nettest.Must(t, d.Close())
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := flowhandover.ExportFlows(ctx, b.bpffs, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if slices.Contains(programsInLinks(t, b.bpffs), "weir_nothing") {
		t.Error("programs pass everything")
	}
	if _, err := os.Stat(filepath.Join(bpffs.MapsDir(b.bpffs), "weir_flows")); err != nil {
		t.Error(err)
	}
	if heldBack(t) {
		t.Error("packets are held back")
	}
}

// TestExportEarlyKeeps: what the other data plane translates already, after an earlier start, stays
// translated.
func TestExportEarlyKeeps(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	applied(t, d, sample(b))
	now, err := d.now()
	nettest.Must(t, err)
	asked, after := flowKeyOf(unix.IPPROTO_TCP, "10.244.1.2:40009", "10.96.0.1:80"), flowKeyOf(unix.IPPROTO_TCP, "10.244.1.2:40009", "172.31.1.207:9000")
	there := flowTo(after, abi.StateReplied, abi.FlowRewrite, abi.ActPass)
	there.Seen = now
	_, err = flowtable.AddFlow(d.loaded.Maps["weir_flows"], asked, there)
	nettest.Must(t, err)
	nettest.Must(t, d.Close())
	table, err := conntrack.Open()
	nettest.Must(t, err)
	defer table.Close()
	want, _ := flowhandover.ConntrackEntry(asked, there, flowhandover.MinTimeout)
	for name, present := range map[string]bool{"nothing": false, "its translation": true} {
		if present {
			_, err = table.Put(want, func(conntrack.Entry) bool { return false })
			nettest.Must(t, err)
		}
		nettest.Must(t, flowhandover.ExportEarly(b.bpffs, slog.New(slog.DiscardHandler)))
		got, found, err := table.Find(want.Reply)
		if err != nil || !found || got.Translated() != present {
			t.Errorf("where %s was known: %+v (%v, %v)", name, got, found, err)
		}
		nettest.Must(t, table.Delete(want.Reply))
	}
}

// TestExportedEarlyEnds: where a connection ended after the stack's view of it was announced, what
// is told of it takes the place of that; of a new one with its addresses and ports it does not.
func TestExportedEarlyEnds(t *testing.T) {
	const closed = abi.StateReplied | abi.StateFIN | abi.StateClosing
	asked, after := flowKeyOf(unix.IPPROTO_TCP, "172.31.1.207:40021", "10.96.0.1:80"), flowKeyOf(unix.IPPROTO_TCP, "172.31.1.207:40021", "10.244.1.3:8080")
	there := flowTo(after, abi.StateReplied, abi.FlowRewrite|abi.FlowFromHost, abi.ActNeigh)
	ended, _ := flowhandover.ConntrackEntry(asked, there, flowhandover.MinTimeout)
	seen, other := flowhandover.ShadowOf(there, ended), ended
	other.Reply.SrcPort++ // another backend's
	for name, was := range map[string]conntrack.Entry{"the stack's view": seen, "a new connection": other} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			d := b.open(t)
			applied(t, d, sample(b))
			v := there
			v.State = closed
			var err error
			v.Seen, err = d.now()
			nettest.Must(t, err)
			_, err = flowtable.AddFlow(d.loaded.Maps["weir_flows"], asked, v)
			nettest.Must(t, err)
			nettest.Must(t, d.Close())
			table, err := conntrack.Open()
			nettest.Must(t, err)
			defer table.Close()
			_, err = table.Put(was, func(conntrack.Entry) bool { return false })
			nettest.Must(t, err)
			nettest.Must(t, flowhandover.ExportFlows(context.Background(), b.bpffs, nil, slog.New(slog.DiscardHandler)))
			want, state := other.Reply, uint8(conntrack.TCPEstablished)
			if was == seen {
				want, state = ended.Reply, conntrack.TCPTimeWait
			}
			if got, found, err := table.Find(ended.Orig); err != nil || !found || got.Reply != want || got.TCP.State != state {
				t.Errorf("there is %+v (%v, %v)", got, found, err)
			}
			nettest.Must(t, table.Delete(ended.Orig))
		})
	}
}

// nftFailsOnce lets the nft program fail when it is to add elements for the first time. said is
// what it was exported.
func nftFailsOnce(t *testing.T) (said func() string) {
	t.Helper()
	return nftHeard(t, "[ -e %[1]s.failed ] || { : >%[1]s.failed; exit 1; }")
}

// nftHeard lets the nft program do something, in the words of sh, before it adds elements. said is
// what it was exported.
func nftHeard(t *testing.T, before string) (said func() string) {
	t.Helper()
	real, err := exec.LookPath("nft")
	nettest.Must(t, err)
	dir := t.TempDir()
	text := filepath.Join(dir, "said")
	script := fmt.Sprintf("#!/bin/sh\ntext=$(cat)\ncase $text in *'add element'*) "+before+";; esac\n"+
		"printf '%%s\\n' \"$text\" >>%[1]s\nprintf '%%s\\n' \"$text\" | %[2]s \"$@\"\n", text, real)
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "nft"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() string {
		b, err := os.ReadFile(text)
		nettest.Must(t, err)
		return string(b)
	}
}

// TestExportFlowsOfOlder: what programs translate that put no mark on it, those of a version
// before, is led all the same.
func TestExportFlowsOfOlder(t *testing.T) {
	for name, older := range map[string]bool{"this version": false, "an older one": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			d := b.open(t)
			applied(t, d, sample(b))
			if older {
				nettest.Must(t, d.tables.ChangeFlags(0, abi.SetMarks))
			}
			nettest.Must(t, d.Close())
			said := nftHeard(t, ":")
			nettest.Must(t, flowhandover.ExportFlows(context.Background(), b.bpffs, nil, slog.New(slog.DiscardHandler)))
			text := said()
			if !strings.Contains(text, "@arrive4 ct zone set 8787") || strings.Contains(text, "meta mark & 0x0ff00000 != 0x0bc00000 accept") == older {
				t.Errorf("nft was told %q", text)
			}
		})
	}
}

// TestExportFlowsLeadsAgain: what could not be led to its zone is tried again before programs pass
// everything.
func TestExportFlowsLeadsAgain(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	applied(t, d, sample(b))
	asked, after := flowKeyOf(unix.IPPROTO_TCP, "10.244.1.2:40012", "10.96.0.1:80"), flowKeyOf(unix.IPPROTO_TCP, "10.244.1.2:40012", "172.31.1.207:9000")
	there := flowTo(after, abi.StateReplied, abi.FlowRewrite, abi.ActPass)
	var err error
	there.Seen, err = d.now()
	nettest.Must(t, err)
	_, err = flowtable.AddFlow(d.loaded.Maps["weir_flows"], asked, there)
	nettest.Must(t, err)
	nettest.Must(t, d.Close())
	said := nftFailsOnce(t)
	nettest.Must(t, flowhandover.ExportFlows(context.Background(), b.bpffs, nil, slog.New(slog.DiscardHandler)))
	if text := said(); !strings.Contains(text, "add element inet weir-switch arrive4 { 10.244.1.2 . 172.31.1.207 . 6 . 40012 . 9000") {
		t.Errorf("it is not led; nft was told %q", text)
	}
	if heldBack(t) {
		t.Error("the table is still there")
	}
}

// TestImportLeadsAgain: what could not be led to its zone is tried again at the next look, though
// the connection is taken over.
func TestImportLeadsAgain(t *testing.T) {
	b := newBench(t)
	s := sample(b)
	b.edit = func(o *Options) { o.Import = flowhandover.ImportAll }
	d := b.open(t)
	table, err := conntrack.Open()
	nettest.Must(t, err)
	defer table.Close()
	asked, after := flowKeyOf(unix.IPPROTO_TCP, "172.31.1.207:40020", "10.96.0.1:80"), flowKeyOf(unix.IPPROTO_TCP, "172.31.1.207:40020", "10.244.1.3:8080")
	e, _ := flowhandover.ConntrackEntry(asked, flowTo(after, abi.StateReplied, abi.FlowRewrite|abi.FlowFromHost, abi.ActNeigh), time.Hour)
	_, err = table.Put(e, func(conntrack.Entry) bool { return false })
	nettest.Must(t, err)
	defer table.Delete(e.Orig)
	nftFailsOnce(t)
	clear(d.programs.Prog) // passAll is attached, so the change does not end
	if err := d.Apply(context.Background(), s, nodestate.All()); err == nil || d.importing == nil {
		t.Fatal("it has ended")
	}
	seen := e.Orig // from the host
	four := d.tables.Families()[0]
	if d.importing.zone.Leads(seen) || !d.importing.has(four, e) {
		t.Errorf("led: %v, taken over: %v", d.importing.zone.Leads(seen), d.importing.has(four, e))
	}
	d.importTracked(d.importing)
	if !d.importing.zone.Leads(seen) {
		t.Error("it is not led the next time")
	}
	for _, d.importing.begun = range []bool{false, true} { // programs removed it: the next one with its addresses and ports is in its place
		nettest.Must(t, four.ForgetImported(e.Orig, e.Reply))
		d.importTracked(d.importing)
		if !four.Knows(e.Orig) || !four.Knows(e.Reply) {
			t.Errorf("begun %v: what took its place is not taken over", d.importing.begun)
		}
	}
	nettest.Must(t, d.importing.zone.Close())
}

// TestImportKeepsLinks: links that an earlier run left are taken over, though another data
// plane's connections are taken over too.
func TestImportKeepsLinks(t *testing.T) {
	b := newBench(t)
	s := sample(b)
	d := b.open(t)
	applied(t, d, s)
	sites := len(d.programs.At)
	nettest.Must(t, d.Close())
	b.edit = func(o *Options) { o.Import = flowhandover.ImportAll }
	d = b.open(t)
	applied(t, d, s)
	if d.programs.Reused != sites {
		t.Errorf("%d links are taken over, want %d", d.programs.Reused, sites)
	}
	for s := range d.programs.At {
		if f, err := (attach.Clsact{}).Reuse(s, ""); s.Ifindex != 0 && err == nil {
			t.Errorf("%s has %+v, too", s, f)
		}
	}
}

// TestImportOnce: interfaces that get no program do not keep the others from carrying packets,
// nor hold them back again; where none gets one, connection tracking is in force until one does.
func TestImportOnce(t *testing.T) {
	b := newBench(t)
	s := sample(b)
	b.edit = func(o *Options) { o.Import = flowhandover.ImportAll }
	d := b.open(t)
	programs := maps.Clone(d.programs.Prog)
	clear(d.programs.Prog)
	fail := func() {
		t.Helper()
		if err := applyWhole(d, s); err == nil {
			t.Fatal("no error")
		}
		if _, holds := switchTable(t); holds {
			t.Error("packets are held back")
		}
	}
	fail()
	if d.importDone || d.importing == nil {
		t.Fatal("taken over though no program is attached")
	}
	took, held := d.importing.readAt, d.importing.held
	fail()
	if d.importDone || d.importing == nil || d.importing.readAt != took || d.importing.held != held {
		t.Error("taken over or held back again at once")
	}
	maps.Copy(d.programs.Prog, programs)
	delete(d.programs.Prog, "from_tunnel")
	fail()
	if !d.importDone || d.importing != nil {
		t.Error("not taken over though most programs are attached")
	}
	if heldBack(t) {
		t.Error("the table is still there")
	}
	maps.Copy(d.programs.Prog, programs)
	applied(t, d, s)
}

// now reads the programs' clock.
func (i instance) now() (uint32, error) {
	c, err := flowtable.NewKernelClock()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.Now()
}

// programsInLinks are the names of the programs in the pinned links of interfaces.
func programsInLinks(t *testing.T, dir string) (names []string) {
	t.Helper()
	pins, err := os.ReadDir(bpffs.LinksDir(dir))
	nettest.Must(t, err)
	for _, pin := range pins {
		if strings.HasPrefix(pin.Name(), "cgroup") {
			continue
		}
		l, err := link.LoadPinnedLink(filepath.Join(bpffs.LinksDir(dir), pin.Name()), nil)
		nettest.Must(t, err)
		info, err := l.Info()
		nettest.Must(t, err)
		p, err := ebpf.NewProgramFromID(info.Program)
		nettest.Must(t, err)
		pi, err := p.Info()
		nettest.Must(t, err)
		names = append(names, pi.Name)
		p.Close()
		l.Close()
	}
	if len(names) == 0 {
		t.Fatal("there are no links")
	}
	return names
}

// TestMarksAreToldWhenAttached: the settings say that programs put marks on packets once all of
// them are attached, those of an older version may be there until then; and go on saying so when
// the agent starts again.
func TestMarksAreToldWhenAttached(t *testing.T) {
	b := newBench(t)
	s := sample(b)
	d := b.open(t)
	programs := maps.Clone(d.programs.Prog)
	delete(d.programs.Prog, "from_tunnel")
	told := func() bool {
		t.Helper()
		m, err := ebpf.LoadPinnedMap(filepath.Join(bpffs.MapsDir(b.bpffs), "weir_settings"), nil)
		nettest.Must(t, err)
		defer m.Close()
		var s abi.Settings[abi.Ip4]
		nettest.Must(t, flowtable.ReadSettingsMap(m, &s))
		return s.Flags&abi.SetMarks != 0
	}
	if err := d.Apply(context.Background(), s, nodestate.All()); err == nil || told() {
		t.Errorf("%v; told: %v, want an error, and nothing told", err, told())
	}
	maps.Copy(d.programs.Prog, programs)
	applied(t, d, s)
	if !told() {
		t.Error("not told though all programs are attached")
	}
	nettest.Must(t, d.Close())
	d = b.open(t)
	clear(d.programs.Prog) // those that are there stay: what the next agent cannot attach does not make it forget
	if err := d.Apply(context.Background(), s, nodestate.All()); !told() {
		t.Errorf("forgotten by the next agent (%v)", err)
	}
}

func flowKeyOf(proto uint8, src, dst string) abi.FlowKey[abi.Ip4] {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return abi.FlowKey[abi.Ip4]{Saddr: abi.ToAddr[abi.Ip4](s.Addr()), Daddr: abi.ToAddr[abi.Ip4](d.Addr()), Sport: abi.Be16(s.Port()), Dport: abi.Be16(d.Port()), Proto: proto}
}

// flowTo is an entry that makes of a packet another.
func flowTo(after abi.FlowKey[abi.Ip4], state, flags, action uint8) abi.FlowValue[abi.Ip4] {
	return abi.FlowValue[abi.Ip4]{Saddr: after.Saddr, Daddr: after.Daddr, Sport: after.Sport, Dport: after.Dport, State: state, Flags: flags, Action: action}
}
