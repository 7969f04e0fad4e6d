// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
)

// Successor is the data plane that takes the place of the programs.
type Successor interface {
	// Mark is the mark of a connection in connection tracking whose packets go by another node.
	Mark(conntrack.NodeRoute) (mark uint32, ok bool)
	// Remember lets clients stay with their backends.
	Remember([]conntrack.Affinity) error
	// Learn has pods know what they were told of domain names.
	Learn([]conntrack.Told) error
}

// ExportFlows hands the flows of a driver that is no more over to connection tracking, and lets its
// programs, which still carry all packets, pass them on to the stack. The other data plane is in
// place by then: it evaluates what comes by there. root is the folder of pins. First most flows
// are exported, while programs go on. Then programs begin no more flows: the other data plane does.
// So all that is left to be exported is exported, and from then on it does not matter which of the
// two carries a packet of a flow that both know. What cannot be exported is lost, and no reason not
// to go on: Remove does the rest.
func ExportFlows(ctx context.Context, root string, to Successor, log *slog.Logger) error {
	return ExportWith(ctx, root, to, nil, log)
}

// ExportWith is ExportFlows; handOver changes the settings where their driver is still there,
// which owns them. nil = it is not.
func ExportWith(ctx context.Context, root string, to Successor, handOver func(on, apart bool) error, log *slog.Logger) error {
	began := time.Now()
	g, err := openExporters(root, to)
	g.driver = handOver
	defer g.close()
	if err != nil || len(g.families) == 0 {
		return err
	}
	first, err1 := g.export(exportUnseen)
	err1 = errors.Join(err1, g.exportAffinities(to))
	marks := g.marks()
	zone := conntrack.NewTranslatedZone(g.table, marks)
	if err = zone.Open(ctx); err != nil { // nobody would take marks off again
		marks.Seen = 0
		zone = conntrack.NewTranslatedZone(g.table, marks)
	}
	if err := g.handOver(true, marks.Seen != 0); err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err(), g.handOver(false, false), zone.Close()) // programs go on, and the next start begins anew
	}
	conntrack.AwaitPackets() // what was beginning has begun, and bears a mark where it has to
	err1 = errors.Join(err1, g.exportAffinities(to))
	err = errors.Join(err, g.exportShadows(ctx, zone))
	second, err2 := g.export(exportAll)
	if err != nil {
		err = g.exportShadows(ctx, zone) // what could not be led
	}
	g.full = g.full || errors.Is(err, conntrack.ErrFull)
	if err != nil {
		log.Warn("connections between the node's processes and Services may be lost", "error", err)
	}
	if err := g.unpinFlows(); err != nil {
		return errors.Join(err, g.handOver(false, false), zone.Close())
	}
	err = zone.Unsent()
	conntrack.AwaitPackets() // what the node sent, and programs translate
	// Each packet is translated by one of the two: what comes by the programs of the ingress paths
	// as long as they are there; what the node sends by connection tracking, and programs of the
	// egress paths know nothing of what is translated.
	err3 := g.disablePrograms(attach.FromUplink, attach.FromTunnel, attach.FromWorkload, attach.ToWorkload, attach.ToUplink)
	conntrack.AwaitPackets()
	err4 := zone.Close()
	if g.full {
		log.Warn("connection tracking is full to nine tenths (net.netfilter.nf_conntrack_max); further connections were not handed over, and end")
	}
	log.Info("connections were handed over to connection tracking", "before", first, "after", second, "took", time.Since(began).Round(time.Millisecond))
	return errors.Join(err, err1, err2, err3, err4)
}

// exportShadows keeps apart what programs translate and the stack sees, and lets them go on
// translating it, while connection tracking is exported of it.
func (g *exporters) exportShadows(ctx context.Context, zone *conntrack.TranslatedZone) error {
	seen, err := g.shadows()
	return errors.Join(err, zone.Add(ctx, seen), zone.Sent(ctx))
}

// exporters are the flows of the families that have any, and the programs.
type exporters struct {
	root     string
	driver   func(on, apart bool) error // owns the settings; nil = nobody does
	families []exporter
	table    *conntrack.Table
	clock    *flowtable.KernelClock
	passAll  *ebpf.Program
	full     bool // connection tracking had no room for all
}

type exporter interface {
	affinities(now uint32) ([]conntrack.Affinity, error)
	// marks reports whether programs mark what they translate for the stack, when they are asked
	// to.
	marks() bool
	// handOver lets what has no flow pass, or be evaluated again; with apart what is translated for
	// the stack bears a mark.
	handOver(on, apart bool) error
	// shadows are the flows that programs translate and the stack sees, as it sees them.
	shadows(now uint32) ([]conntrack.Entry, error)
	export(t *conntrack.Table, now uint32, w exportScope, room int) (int, error)
	close()
}

// unpinFlows removes the pins of the flows, before programs stop to keep them: whoever comes later,
// to hand over or to carry packets by programs again, must not take them for what is true then.
// Those that are open stay open.
func (g *exporters) unpinFlows() error {
	var errs []error
	for _, dir := range []string{bpffs.MapsDir(g.root), bpffs.Maps6Dir(g.root)} {
		for _, name := range []string{"weir_flows", "weir_flows_new"} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("removing the pin of %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

func openExporters(root string, to Successor) (*exporters, error) {
	g := &exporters{root: root}
	four, err := openExporter[abi.Ip4](bpffs.MapsDir(root), to)
	six, err6 := openExporter[abi.Ip6](bpffs.Maps6Dir(root), to)
	if four != nil {
		g.families = append(g.families, four)
	}
	if six != nil {
		g.families = append(g.families, six)
	}
	if err := errors.Join(err, err6); err != nil || len(g.families) == 0 {
		return g, err
	}
	if g.table, err = conntrack.Open(); err != nil {
		return g, err
	}
	if g.clock, err = flowtable.NewKernelClock(); err != nil {
		return g, err
	}
	const next = -1 // TCX_NEXT, TC_ACT_UNSPEC
	g.passAll, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weir_nothing", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, next), asm.Return()}})
	if err != nil {
		return g, fmt.Errorf("loading the program that passes everything: %w", err)
	}
	return g, nil
}

func (g *exporters) close() {
	for _, f := range g.families {
		f.close()
	}
	if g.table != nil {
		g.table.Close()
	}
	if g.clock != nil {
		g.clock.Close()
	}
	if g.passAll != nil {
		g.passAll.Close()
	}
}

// exportScope is which flows are exported.
type exportScope int

const (
	exportSeen   exportScope = iota // those whose packets the stack sees, as it sees them
	exportUnseen                    // the others, and what is not translated
	exportAll
)

// marks are the marks of packets that programs respect.
func (g *exporters) marks() conntrack.Marks {
	out := Marks
	for _, f := range g.families {
		if !f.marks() {
			out.Seen = 0
		}
	}
	return out
}

// handOver lets what has no flow pass the programs, and with apart what they translate for the
// stack be marked; or lets it begin one again.
func (g *exporters) handOver(on, apart bool) error {
	if g.driver != nil {
		return g.driver(on, apart)
	}
	var errs []error
	for _, f := range g.families {
		errs = append(errs, f.handOver(on, apart))
	}
	return errors.Join(errs...)
}

// shadows are the flows that programs translate and the stack sees, as it sees them.
func (g *exporters) shadows() (out []conntrack.Entry, err error) {
	now, err := g.clock.Now()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range g.families {
		some, err := f.shadows(now)
		out, errs = append(out, some...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// export exports what was not exported yet.
func (g *exporters) export(w exportScope) (int, error) {
	now, err := g.clock.Now()
	if err != nil {
		return 0, err
	}
	room, err := conntrack.Room()
	if err != nil {
		return 0, err
	}
	sum := 0
	var errs []error
	for _, f := range g.families {
		n, err := f.export(g.table, now, w, room-sum)
		sum += n
		if errors.Is(err, conntrack.ErrFull) {
			g.full = true
			continue
		}
		errs = append(errs, err)
	}
	return sum, errors.Join(errs...)
}

// familyExporter has the flows of one family.
type familyExporter[A abi.Address] struct {
	flows, half, settings, affinity *ebpf.Map
	current                         abi.Settings[A]
	to                              Successor // nil = nobody: marks name no nodes
	exported                        map[abi.FlowKey[A]]struct{}
}

// openExporter opens the flows of a family; it returns nil where there are none.
func openExporter[A abi.Address](dir string, to Successor) (exporter, error) {
	g := &familyExporter[A]{exported: map[abi.FlowKey[A]]struct{}{}, to: to}
	for name, m := range map[string]**ebpf.Map{"weir_flows": &g.flows, "weir_flows_new": &g.half, "weir_settings": &g.settings, "weir_affinity": &g.affinity} {
		var err error
		if *m, err = ebpf.LoadPinnedMap(filepath.Join(dir, name), nil); err != nil {
			g.close()
			if errors.Is(err, fs.ErrNotExist) {
				return nil, nil
			}
			return nil, fmt.Errorf("opening the pinned map %s: %w", name, err)
		}
	}
	return g, nil
}

func (g *familyExporter[A]) close() {
	for _, m := range []*ebpf.Map{g.flows, g.half, g.settings, g.affinity} {
		if m != nil {
			m.Close()
		}
	}
}

func (g *familyExporter[A]) marks() bool {
	return flowtable.ReadSettingsMap(g.settings, &g.current) == nil && g.current.Flags&abi.SetMarks != 0
}

func (g *familyExporter[A]) handOver(on, apart bool) error {
	if err := flowtable.ReadSettingsMap(g.settings, &g.current); err != nil {
		return err
	}
	set, clear := SettingsFlags(on, apart)
	g.current.Flags = g.current.Flags&^clear | set
	var zero uint32
	if err := g.settings.Update(&zero, unsafe.Pointer(&g.current), ebpf.UpdateAny); err != nil {
		return fmt.Errorf("writing the settings: %w", err)
	}
	return nil
}

func (g *familyExporter[A]) shadows(now uint32) (out []conntrack.Entry, err error) {
	err = g.each(func(k abi.FlowKey[A], v abi.FlowValue[A]) {
		if v.Flags&abi.FlowReply != 0 || !seenTranslated(v) {
			return
		}
		if e, ok := ConntrackEntry(k, v, g.timeLeft(k, v, now)); ok {
			out = append(out, ShadowOf(v, e))
		}
	})
	return out, err
}

// each hands on every entry, those of established flows first. A flow that becomes established
// meanwhile stands in one map before it leaves the other (flow_promote of bpf/flow_state.h), so
// what is half open is read first: it may come twice, and is never missed.
func (g *familyExporter[A]) each(f func(abi.FlowKey[A], abi.FlowValue[A])) error {
	type entry struct {
		k abi.FlowKey[A]
		v abi.FlowValue[A]
	}
	var half []entry
	err := flowtable.EachFlow(g.half, func(k abi.FlowKey[A], v abi.FlowValue[A]) { half = append(half, entry{k, v}) })
	err = errors.Join(err, flowtable.EachFlow(g.flows, f))
	for _, e := range half {
		f(e.k, e.v)
	}
	return err
}

// find looks for an entry, in the order of each.
func (g *familyExporter[A]) find(k abi.FlowKey[A], v *abi.FlowValue[A]) bool {
	return flowtable.LookUpFlow(g.half, k, v) == nil || flowtable.LookUpFlow(g.flows, k, v) == nil
}

// affinities are those whose client is known by its address.
func (g *familyExporter[A]) affinities(now uint32) (out []conntrack.Affinity, err error) {
	if err := flowtable.ReadSettingsMap(g.settings, &g.current); err != nil {
		return nil, err
	}
	err = flowtable.EachAffinity(g.affinity, func(k abi.AffinityKey[A], v abi.AffinityValue[A]) {
		if k.Client.Netns != [2]uint32{} {
			return
		}
		out = append(out, conntrack.Affinity{Service: netip.AddrPortFrom(abi.FromAddr(k.Svc.Addr), abi.Be16(k.Svc.Port)), Proto: k.Svc.Proto, Client: abi.FromAddr(k.Client.Addr),
			Backend: netip.AddrPortFrom(abi.FromAddr(v.Backend.Addr), abi.Be16(v.Backend.Port)), Age: g.span(max(int64(int32(now-v.Seen)), 0))})
	})
	return out, err
}

// span is how long some units of the clock are.
func (g *familyExporter[A]) span(units int64) time.Duration { return span(&g.current, units) }

func span[A abi.Address](s *abi.Settings[A], units int64) time.Duration {
	return time.Duration(units) * 1000 * time.Second / time.Duration(max(s.PerSecond, 1))
}

// export exports at most room flows; the error is conntrack.ErrFull when there are more.
func (g *familyExporter[A]) export(t *conntrack.Table, now uint32, w exportScope, room int) (n int, err error) {
	if err := flowtable.ReadSettingsMap(g.settings, &g.current); err != nil {
		return 0, err
	}
	var some conntrack.Some
	full := false
	err = g.each(func(k abi.FlowKey[A], v abi.FlowValue[A]) {
		if n >= room {
			_, due := g.due(k, v, w)
			full = full || due
			return
		}
		put, err := g.exportOne(t, k, v, now, w)
		some.Add(err)
		if put {
			n++
		}
	})
	if err := errors.Join(some.Err(), err); err != nil || !full {
		return n, err
	}
	return n, conntrack.ErrFull
}

// due returns the original direction of the flow that an entry is of, and whether it is this
// entry's to export it now.
func (g *familyExporter[A]) due(k abi.FlowKey[A], v abi.FlowValue[A], w exportScope) (orig abi.FlowKey[A], due bool) {
	orig = k
	if v.Flags&abi.FlowReply != 0 {
		orig = v.After(k.Proto).Reversed()
	}
	if _, done := g.exported[orig]; done || w == exportUnseen && seenTranslated(v) || w == exportSeen && !seenByStack(v) {
		return orig, false
	}
	return orig, v.Flags&abi.FlowReply == 0 || !g.known(orig)
}

// exportOne exports the flow of an entry, unless it was exported.
func (g *familyExporter[A]) exportOne(t *conntrack.Table, k abi.FlowKey[A], v abi.FlowValue[A], now uint32, w exportScope) (put bool, err error) {
	orig, due := g.due(k, v, w)
	if !due {
		return false, nil
	}
	e, ok := ConntrackEntry(k, v, g.timeLeft(k, v, now))
	if !ok || v.State&abi.StateStack != 0 && !e.Translated() { // the stack carries it already, and may translate its source
		return false, nil
	}
	if w == exportSeen && seenTranslated(v) {
		e = ShadowOf(v, e)
	}
	if e.Mark, ok = g.mark(orig, v); !ok {
		return false, nil
	}
	put, err = t.Put(e, func(there conntrack.Entry) bool {
		if w == exportSeen && there.Translated() {
			return true // by the other data plane, whose tables an earlier start wrote
		}
		if w == exportAll && v.State&abi.StateClosing != 0 && there.Orig == e.Orig && (there.Translated() || !e.Translated()) {
			return true // what has the addresses and ports of one that ended is a new one, unless it is the same one as the stack sees it
		}
		// What processes of the node send meets the other data plane first, which chose by itself
		// for what began meanwhile.
		return v.Flags&abi.FlowFromHost != 0 && there.Translated() && (there.Orig == e.Orig || !e.Translated())
	})
	if err == nil && w != exportSeen {
		g.exported[orig] = struct{}{}
	}
	return put, err
}

// mark is what connection tracking is to know of the node by which packets of a flow go. It is not
// ok where the flow is handed on to a node that no mark names. v is the entry of either direction.
func (g *familyExporter[A]) mark(orig abi.FlowKey[A], v abi.FlowValue[A]) (mark uint32, ok bool) {
	handsOn := v.Flags&abi.FlowHandOn != 0
	if g.to == nil {
		return 0, !handsOn
	}
	there := v
	if (v.Flags&abi.FlowReply == 0 || g.find(orig, &there)) && there.State&abi.StateGateway != 0 {
		mark, _ = g.to.Mark(conntrack.NodeRoute{Node: abi.FromAddr(there.Nexthop), Gateway: true, Tunnel: there.Action == abi.ActTunnel})
		return mark, true // without one it begins anew
	}
	at := orig
	if !handsOn && v.Flags&abi.FlowReply == 0 {
		at = v.After(orig.Proto).Reversed()
	}
	var goes abi.FlowValue[A]
	switch {
	case handsOn == (v.Flags&abi.FlowReply == 0):
		goes = v
	case !g.find(at, &goes):
		return 0, !handsOn
	}
	if !handsOn && goes.Flags&abi.FlowViaNode == 0 {
		if g.current.Flags&abi.SetChained == 0 || v.Flags&abi.FlowRewrite == 0 || v.Flags&abi.FlowFromHost != 0 {
			return 0, true
		}
		// Another CNI plugin's routing rules would lead answers by the pod's address.
		return g.to.Mark(conntrack.NodeRoute{Routes: true})
	}
	mark, ok = g.to.Mark(conntrack.NodeRoute{Node: abi.FromAddr(goes.Nexthop), HandsOn: handsOn, Tunnel: !handsOn && goes.Action == abi.ActTunnel,
		Came: !handsOn && goes.Flags&abi.FlowClamp != 0})
	return mark, ok || !handsOn
}

// known reports whether the original direction of a flow has an entry.
func (g *familyExporter[A]) known(orig abi.FlowKey[A]) bool {
	var v abi.FlowValue[A]
	return g.find(orig, &v)
}

// timeLeft is how long an entry has until its time-out; negative when it is over.
func (g *familyExporter[A]) timeLeft(k abi.FlowKey[A], v abi.FlowValue[A], now uint32) time.Duration {
	return TimeLeft(&g.current, k, v, now)
}

// TimeLeft is how long an entry has by the settings until its time-out; negative when it is over.
func TimeLeft[A abi.Address](s *abi.Settings[A], k abi.FlowKey[A], v abi.FlowValue[A], now uint32) time.Duration {
	icmp := uint8(unix.IPPROTO_ICMP)
	if abi.FromAddr(k.Saddr).Is6() {
		icmp = unix.IPPROTO_ICMPV6
	}
	age := max(int64(int32(now-v.Seen)), 0)
	return span(s, int64(flowtable.FlowLimit(s.Timeouts, k.Proto, v.State, v.Flags, icmp))-age)
}
