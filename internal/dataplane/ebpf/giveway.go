package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/kernel"
)

// GiveWay hands the flows of a driver that is no more over to connection tracking, and lets its programs, which still carry all packets,
// pass them on to the stack. The other data plane is in place by then: it judges what comes by there. bpffs is the folder of pins. Flows
// are told before, while programs go on, and those that began meanwhile after the programs of pods and of the ways in pass; what comes
// in between is held back (conntrack.Hold). What cannot be told is lost, and no reason not to go on: Remove does the rest.
func GiveWay(ctx context.Context, bpffs string, hold conntrack.HoldOptions, log *slog.Logger) error {
	began := time.Now()
	g, err := openGivers(bpffs)
	defer g.close()
	if err != nil || len(g.families) == 0 {
		return err
	}
	first, err1 := g.tell(tellHidden)
	if ctx.Err() != nil {
		return ctx.Err() // programs go on, and the next start begins anew
	}
	held := time.Now()
	release, err := conntrack.Hold(ctx, hold)
	if err != nil {
		log.Warn("connections that begin at this moment may be lost", "error", err)
	}
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), release())
	}
	if err := g.forget(); err != nil {
		return errors.Join(err, release())
	}
	// What the stack sends to pods first: it knows their connections already, or is held back. Then the ways in; last the way out of what
	// local processes answer, which has to be translated by them until connection tracking does.
	err2 := g.pass(toWorkload, fromUplink, fromTunnel, fromWorkload)
	second, err3 := g.tell(tellAll)
	err4 := g.pass(toUplink)
	err5 := release()
	if took := time.Since(held); took > conntrack.HoldTime {
		log.Warn("packets were held back for a shorter time than the change took; connections that began meanwhile may be lost", "took", took.Round(time.Millisecond))
	}
	if g.full {
		log.Warn("connection tracking is full to nine tenths (net.netfilter.nf_conntrack_max); further connections were not handed over, and end")
	}
	log.Info("connections were handed over to connection tracking", "before", first, "after", second, "held back for", time.Since(held).Round(time.Millisecond),
		"took", time.Since(began).Round(time.Millisecond))
	return errors.Join(err1, err2, err3, err4, err5)
}

// givers are the flows of the families that have any, and the programs.
type givers struct {
	bpffs    string
	families []giver
	table    *conntrack.Table
	clock    *kernelClock
	nothing  *ebpf.Program
	full     bool // connection tracking had no room for all
}

type giver interface {
	tell(t *conntrack.Table, now uint32, w telling, room int) (int, error)
	close()
}

// errFull says that connection tracking has no room for more.
var errFull = errors.New("connection tracking has no room for more")

// forget removes the pins of the flows, before programs stop to keep them: whoever comes later, to hand over or to carry packets by programs
// again, must not take them for what is true then. Those that are open stay open.
func (g *givers) forget() error {
	var errs []error
	for _, dir := range []string{mapsDir(g.bpffs), maps6Dir(g.bpffs)} {
		for _, name := range []string{"weir_flows", "weir_flows_new"} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("removing the pin of %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

func openGivers(bpffs string) (*givers, error) {
	g := &givers{bpffs: bpffs}
	four, err := openGiver[ip4](mapsDir(bpffs))
	six, err6 := openGiver[ip6](maps6Dir(bpffs))
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
	if g.clock, err = newKernelClock(); err != nil {
		return g, err
	}
	const next = -1 // TCX_NEXT, TC_ACT_UNSPEC
	g.nothing, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weir_nothing", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, next), asm.Return()}})
	if err != nil {
		return g, fmt.Errorf("loading the program that passes everything: %w", err)
	}
	return g, nil
}

func (g *givers) close() {
	for _, f := range g.families {
		f.close()
	}
	if g.table != nil {
		g.table.Close()
	}
	if g.clock != nil {
		g.clock.close()
	}
	if g.nothing != nil {
		g.nothing.Close()
	}
}

// telling is which flows are told.
type telling int

const (
	tellSeen   telling = iota // those whose packets the stack sees, as it sees them
	tellHidden                // the others, and what is not translated
	tellAll
)

// Foretell tells connection tracking of the flows whose packets the stack sees as long as programs carry them: those of the node's own
// processes. It is called before the other data plane's tables are written: with them connection tracking begins, and would take the side
// whose packet it sees first for the one that opened the connection.
func Foretell(bpffs string, log *slog.Logger) error {
	g, err := openGivers(bpffs)
	defer g.close()
	if err != nil || len(g.families) == 0 {
		return err
	}
	n, err := g.tell(tellSeen)
	if g.full {
		log.Warn("connection tracking is full to nine tenths (net.netfilter.nf_conntrack_max); further connections are not made known")
	}
	log.Info("connections of the node's processes were made known to connection tracking", "connections", n)
	return err
}

// tell tells what was not told yet.
func (g *givers) tell(w telling) (int, error) {
	now, err := g.clock.now()
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
		n, err := f.tell(g.table, now, w, room-sum)
		sum += n
		if errors.Is(err, errFull) {
			g.full = true
			continue
		}
		errs = append(errs, err)
	}
	return sum, errors.Join(errs...)
}

// pass lets the programs of some hooks pass everything, in this order.
func (g *givers) pass(hooks ...hook) error {
	pins, err := os.ReadDir(linksDir(g.bpffs))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking for pinned links: %w", err)
	}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	var errs []error
	for _, h := range hooks {
		for _, pin := range pins {
			index, name, ok := strings.Cut(pin.Name(), "-")
			if _, err := strconv.Atoi(index); ok && err == nil && name == h.name {
				errs = append(errs, g.passLink(filepath.Join(linksDir(g.bpffs), pin.Name())))
			}
		}
		for _, l := range links {
			errs = append(errs, removeFilter(l.Attrs().Index, h))
		}
	}
	return errors.Join(errs...)
}

// passLink replaces the program of a pinned link. To detach it would wait for a grace period of RCU.
func (g *givers) passLink(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the link %s: %w", path, err)
	}
	defer l.Close()
	if err := l.Update(g.nothing); err != nil && !errors.Is(err, unix.ENOLINK) {
		return fmt.Errorf("taking the program out of the link %s: %w", path, err)
	}
	return nil
}

// giverOf has the flows of one family.
type giverOf[A address] struct {
	flows, half, settings *ebpf.Map
	current               settings[A]
	told                  map[flowKey[A]]struct{}
}

// openGiver opens the flows of a family; it returns nil where there are none.
func openGiver[A address](dir string) (giver, error) {
	g := &giverOf[A]{told: map[flowKey[A]]struct{}{}}
	for name, m := range map[string]**ebpf.Map{"weir_flows": &g.flows, "weir_flows_new": &g.half, "weir_settings": &g.settings} {
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

func (g *giverOf[A]) close() {
	for _, m := range []*ebpf.Map{g.flows, g.half, g.settings} {
		if m != nil {
			m.Close()
		}
	}
}

// tell tells of at most room flows; the error is errFull when there are more.
func (g *giverOf[A]) tell(t *conntrack.Table, now uint32, w telling, room int) (n int, err error) {
	if err := readSettingsMap(g.settings, &g.current); err != nil {
		return 0, err
	}
	var errs []error
	full := false
	for _, m := range []*ebpf.Map{g.flows, g.half} {
		err := eachFlow(m, func(k flowKey[A], v flowValue[A]) {
			if n >= room {
				_, due := g.due(k, v, w)
				full = full || due
				return
			}
			put, err := g.tellOne(t, k, v, now, w)
			if err != nil && len(errs) < 3 {
				errs = append(errs, err)
			}
			if put {
				n++
			}
		})
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil || !full {
		return n, err
	}
	return n, errFull
}

// due returns the original direction of the flow that an entry is of, and whether it is this entry's to tell of it now.
func (g *giverOf[A]) due(k flowKey[A], v flowValue[A], w telling) (orig flowKey[A], due bool) {
	orig = k
	if v.Flags&flowReply != 0 {
		orig = v.after(k.Proto).turned()
	}
	if _, done := g.told[orig]; done || w == tellHidden && v.inStack() || w == tellSeen && !v.seenByStack() {
		return orig, false
	}
	return orig, v.Flags&flowReply == 0 || !g.known(orig)
}

// tellOne tells the flow of an entry, unless it was told.
func (g *giverOf[A]) tellOne(t *conntrack.Table, k flowKey[A], v flowValue[A], now uint32, w telling) (put bool, err error) {
	orig, due := g.due(k, v, w)
	if !due {
		return false, nil
	}
	e, ok := tracked(k, v, g.left(k, v, now))
	if !ok {
		return false, nil
	}
	if w == tellSeen && v.inStack() {
		e = v.shadow(e)
	}
	put, err = t.Put(e, func(there conntrack.Entry) bool {
		if w == tellSeen && there.Translated() {
			return true // by the other data plane, whose tables an earlier start wrote
		}
		// What processes of the node send meets the other data plane first, which chose by itself for what began meanwhile.
		return v.Flags&flowFromHost != 0 && there.Orig == e.Orig && there.Translated()
	})
	if err == nil && w != tellSeen {
		g.told[orig] = struct{}{}
	}
	return put, err
}

// known reports whether the original direction of a flow has an entry.
func (g *giverOf[A]) known(orig flowKey[A]) bool {
	var v flowValue[A]
	return lookUpFlow(g.flows, orig, &v) == nil || lookUpFlow(g.half, orig, &v) == nil
}

// left is how long an entry has until its time-out; negative when it is over.
func (g *giverOf[A]) left(k flowKey[A], v flowValue[A], now uint32) time.Duration {
	icmp := uint8(unix.IPPROTO_ICMP)
	if fromAddr(k.Saddr).Is6() {
		icmp = unix.IPPROTO_ICMPV6
	}
	age := max(int64(int32(now-v.Seen)), 0)
	units := int64(g.current.Timeouts[flowTimeout(k.Proto, v.State, icmp)]) - age
	return time.Duration(units) * 1000 * time.Second / time.Duration(max(g.current.PerSecond, 1))
}
