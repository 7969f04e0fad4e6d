// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// Hook is what a program is attached as. Its name is the program's without the prefix.
type Hook struct {
	Name string
	At   ebpf.AttachType
}

var (
	FromWorkload = Hook{"from_workload", ebpf.AttachTCXIngress}
	ToWorkload   = Hook{"to_workload", ebpf.AttachTCXEgress}
	FromUplink   = Hook{"from_uplink", ebpf.AttachTCXIngress}
	ToUplink     = Hook{"to_uplink", ebpf.AttachTCXEgress}
	FromTunnel   = Hook{"from_tunnel", ebpf.AttachTCXIngress}
	FromQueue    = Hook{"from_queue", ebpf.AttachTCXIngress}
	Arrive       = Hook{"arrive", ebpf.AttachXDP}

	CgroupHooks = []Hook{
		{"connect4", ebpf.AttachCGroupInet4Connect}, {"connect6", ebpf.AttachCGroupInet6Connect},
		{"sendmsg4", ebpf.AttachCGroupUDP4Sendmsg}, {"sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
		{"recvmsg4", ebpf.AttachCGroupUDP4Recvmsg}, {"recvmsg6", ebpf.AttachCGroupUDP6Recvmsg},
		{"getpeername4", ebpf.AttachCgroupInet4GetPeername}, {"getpeername6", ebpf.AttachCgroupInet6GetPeername},
	}

	// CgroupHooks6 are those of the programs for IPv6. On each hook both families' programs are
	// attached and all run (links always share a hook): a socket address is of one family, which
	// the other's program leaves alone, so their order is no matter.
	CgroupHooks6 = []Hook{
		{Ipv6Prefix + "connect6", ebpf.AttachCGroupInet6Connect}, {Ipv6Prefix + "sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
		{Ipv6Prefix + "recvmsg6", ebpf.AttachCGroupUDP6Recvmsg}, {Ipv6Prefix + "getpeername6", ebpf.AttachCgroupInet6GetPeername},
	}
)

// Ipv6Prefix is before the names of IPv6's own hooks.
const Ipv6Prefix = "ipv6-"

// Site is one place where a program is attached: a hook of an interface, or of the control group
// when ifindex is 0.
type Site struct {
	Ifindex int
	Hook    Hook
}

// Pin is the name of a site's link below the folder of links.
func (s Site) Pin() string {
	if s.Ifindex == 0 {
		return "cgroup-" + s.Hook.Name
	}
	return strconv.Itoa(s.Ifindex) + "-" + s.Hook.Name
}

func (s Site) String() string {
	if s.Ifindex == 0 {
		return s.Hook.Name + " of the control group"
	}
	return fmt.Sprintf("%s of interface %d", s.Hook.Name, s.Ifindex)
}

// ErrAbsent says that a site's interface is not there.
var ErrAbsent = errors.New("no such interface")

// Attacher attaches programs to sites: by links where the kernel has tcx, by clsact where it does
// not, and where a link takes too long.
type Attacher interface {
	// attach puts prog at a site. The error is ErrAbsent when the interface does not exist.
	attach(s Site, prog *ebpf.Program) (attachment, error)
	// Reuse takes over what an earlier run pinned at path, when it is alive and belongs to the
	// site.
	Reuse(s Site, path string) (attachment, error)
	// links says whether interfaces get links.
	links() bool
}

// attachment is a program at its site.
type attachment interface {
	// Update replaces the program without a moment when none is there.
	Update(s Site, prog *ebpf.Program) error
	// Check says why the program is no longer in effect; nil when it is.
	Check(s Site, prog ebpf.ProgramID) error
	// Pin makes the attachment outlive the process, when it needs a pin for that.
	Pin(path string) error
	Pinned() bool
	// detach takes the program away.
	detach(s Site) error
	// Close lets go of the attachment; a pinned one stays in effect.
	Close() error
}

// Attachments are all programs at their sites.
type Attachments struct {
	by   Attacher
	Dir  string // of pins; empty = nothing is pinned
	Prog map[string]*ebpf.Program
	Ids  map[string]ebpf.ProgramID
	own  map[Site]string // names in Prog, where it is not that of the hook
	At   map[Site]attachment
	back map[Site]backed // what stands behind links
	log  *slog.Logger

	allPinned, noStrays folder // Dir, where every pin was, and no other

	Reused  int // links of an earlier run that were taken over
	Changes int // how often At changed
}

func NewAttachments(by Attacher, dir string, log *slog.Logger) *Attachments {
	return &Attachments{by: by, Dir: dir, Prog: map[string]*ebpf.Program{}, Ids: map[string]ebpf.ProgramID{}, own: map[Site]string{}, At: map[Site]attachment{}, back: map[Site]backed{}, log: log}
}

// Offer makes programs ready to be attached: that of hook prefix + name is weir_name.
func (a *Attachments) Offer(prefix string, programs map[string]*ebpf.Program) error {
	for name, p := range programs {
		id, err := ProgramID(p)
		if err != nil {
			return fmt.Errorf("program %s: %w", name, err)
		}
		name = prefix + strings.TrimPrefix(name, "weir_")
		a.Prog[name], a.Ids[name] = p, id
	}
	return nil
}

// Use puts another program to the sites of a hook, and to those that come.
func (a *Attachments) Use(h Hook, prog *ebpf.Program) error {
	id, err := ProgramID(prog)
	if err != nil || a.Ids[h.Name] == id {
		return err
	}
	a.Prog[h.Name], a.Ids[h.Name] = prog, id
	var errs []error
	for s, at := range a.At {
		if _, own := a.own[s]; s.Hook == h && !own {
			errs = append(errs, at.Update(s, prog))
		}
	}
	return errors.Join(errs...)
}

// Give makes some sites have other programs than those of their hooks: by their names in Prog. All
// others have their hook's.
func (a *Attachments) Give(own map[Site]string) error {
	was := a.own
	a.own = own
	var errs []error
	for s, at := range a.At {
		if was[s] != own[s] {
			errs = append(errs, at.Update(s, a.of(s)))
		}
	}
	return errors.Join(errs...)
}

// nameOf is that of a site's program.
func (a *Attachments) nameOf(s Site) string {
	if name, ok := a.own[s]; ok {
		return name
	}
	return s.Hook.Name
}

// of returns the program of a site, nil where there is none.
func (a *Attachments) of(s Site) *ebpf.Program { return a.Prog[a.nameOf(s)] }

// ID returns the number that the kernel gave to the program of a site.
func (a *Attachments) ID(s Site) ebpf.ProgramID { return a.Ids[a.nameOf(s)] }

// Withdraw detaches the programs of some hooks wherever they are.
func (a *Attachments) Withdraw(hooks []Hook) error {
	var errs []error
	for s := range a.At {
		if slices.Contains(hooks, s.Hook) {
			errs = append(errs, a.Drop(s))
		}
	}
	for _, h := range hooks {
		delete(a.Prog, h.Name)
		delete(a.Ids, h.Name)
	}
	return errors.Join(errs...)
}

// Ensure attaches the program of a site, or, where an earlier run left it attached, replaces it in
// place. With quick a site that has no link yet begins with what attaches without waiting; settle
// does the rest later.
func (a *Attachments) Ensure(s Site, quick bool) error {
	if _, ok := a.At[s]; ok {
		return nil
	}
	prog := a.of(s)
	if prog == nil {
		return fmt.Errorf("no program for %s", s)
	}
	if quick && s.Ifindex != 0 && !a.hasPin(s) {
		if err := a.attach(s, prog, Clsact{}); err == nil || errors.Is(err, ErrAbsent) {
			return err
		}
		// Somebody else's ingress qdisc is there, for one: a link is slower and does not mind.
	}
	if a.Dir != "" {
		path := filepath.Join(a.Dir, s.Pin())
		at, err := a.by.Reuse(s, path)
		if err == nil {
			if err := at.Update(s, prog); err != nil {
				at.Close()
				return fmt.Errorf("replacing the program at %s: %w", s, err)
			}
			a.At[s] = at
			a.Changes++
			a.Reused++
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			a.log.Info("a pinned link is of no use and is replaced", "link", path, "reason", err)
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("removing the link %s: %w", path, err)
			}
		}
	}
	if err := a.attach(s, prog, a.by); err != nil {
		return err
	}
	if at, err := (Clsact{}).Reuse(s, ""); err == nil && s.Ifindex != 0 && s.Hook.At != ebpf.AttachXDP && a.At[s].Pinned() && !OfWorkload(s.Hook) {
		return at.detach(s)
	}
	return nil // a pod's filters stay behind its links: see backstop
}

// hasPin reports whether a run before this one may have left a link at a site: its program comes
// before any filter.
func (a *Attachments) hasPin(s Site) bool {
	if a.Dir == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(a.Dir, s.Pin()))
	return !errors.Is(err, fs.ErrNotExist)
}

// Settle gives one site that began quickly its link.
func (a *Attachments) Settle() error {
	if !a.by.links() {
		return nil
	}
	for s, at := range a.At {
		if at.Pinned() || s.Ifindex == 0 {
			continue
		}
		if err := a.attach(s, a.of(s), a.by); err != nil {
			return err
		}
		// The link comes before the filter: from here on that sees nothing, unless the link is
		// lost.
		if OfWorkload(s.Hook) {
			return nil
		}
		return at.detach(s)
	}
	return nil
}

func (a *Attachments) attach(s Site, prog *ebpf.Program, by Attacher) error {
	at, err := by.attach(s, prog)
	if err != nil {
		return err
	}
	if a.Dir != "" && at.Pinned() {
		if err := at.Pin(filepath.Join(a.Dir, s.Pin())); err != nil {
			return errors.Join(fmt.Errorf("pinning the link of %s: %w", s, err), at.Close())
		}
	}
	a.At[s] = at
	a.Changes++
	return nil
}

// Retain detaches everything but the given sites; with strays also what an earlier run left pinned.
func (a *Attachments) Retain(wanted map[Site]string, strays bool) error {
	var errs []error
	for s, at := range a.At {
		_, keep := wanted[s]
		switch {
		case keep:
		case at.Pinned() && (s.Hook == FromWorkload || s.Hook == ToWorkload):
			errs = append(errs, a.dropLater(s))
		default:
			errs = append(errs, a.Drop(s), a.dropBackstop(s))
		}
	}
	if a.Dir == "" || !strays {
		return errors.Join(errs...)
	}
	since := changed(a.Dir)
	if a.noStrays.same(since) {
		return errors.Join(errs...)
	}
	keep := map[string]bool{}
	for s := range wanted {
		keep[s.Pin()] = true
	}
	entries, err := os.ReadDir(a.Dir)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("looking for pinned links: %w", err))...)
	}
	for _, e := range entries {
		if keep[e.Name()] {
			continue
		}
		// Without a pin and without a holder the kernel detaches it.
		if err := os.Remove(filepath.Join(a.Dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing a link that is no longer wanted: %w", err))
		}
	}
	// A pin of a site that is wanted and not attached may become one that nobody wants.
	if len(errs) == 0 && len(a.At) == len(wanted) {
		a.noStrays.found(since)
	}
	return errors.Join(errs...)
}

// Drop detaches one site.
func (a *Attachments) Drop(s Site) error {
	at := a.At[s]
	return errors.Join(a.forget(s), at.detach(s), at.Close())
}

// forget removes a site and its pin, and leaves the program attached while somebody holds it.
func (a *Attachments) forget(s Site) error {
	delete(a.At, s)
	a.Changes++
	delete(a.back, s)
	if a.Dir == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(a.Dir, s.Pin())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the link of %s: %w", s, err)
	}
	return nil
}

// lingering is how long the interface of a pod that is gone is given to go.
const lingering = 3 * time.Second

// dropLater detaches a pod's interface once that is gone, which costs nothing then; to detach a
// link from an interface holds up other pods' starts for a grace period of RCU. Until then the
// program drops what comes from there: the interface has no address any more.
func (a *Attachments) dropLater(s Site) error {
	at := a.At[s]
	time.AfterFunc(lingering, func() {
		if err := at.Close(); err != nil {
			a.log.Debug("letting go of a link", "site", s.String(), "error", err)
		}
	})
	return a.forget(s)
}

// Broken returns the sites whose program is no longer in effect or no longer pinned, and why.
func (a *Attachments) Broken() map[Site]error {
	return a.BrokenAt(func(Hook) bool { return true })
}

// BrokenAt looks at the programs of some hooks, and at all pins.
func (a *Attachments) BrokenAt(some func(Hook) bool) map[Site]error {
	out := map[Site]error{}
	since := changed(a.Dir)
	pins := a.Dir != "" && !a.allPinned.same(since)
	for s, at := range a.At {
		if some(s.Hook) {
			if err := at.Check(s, a.ID(s)); err != nil {
				out[s] = err
				continue
			}
		}
		if !pins || !at.Pinned() {
			continue
		}
		if _, err := os.Lstat(filepath.Join(a.Dir, s.Pin())); err != nil {
			out[s] = fmt.Errorf("its pin is gone: %w", err)
		}
	}
	if pins && len(out) == 0 {
		a.allPinned.found(since)
	}
	return out
}

// Renew attaches a broken site again.
func (a *Attachments) Renew(s Site) error {
	at := a.At[s]
	if err := at.Check(s, 0); err == nil {
		// Only its pin or its program is wrong: repair it in place, no packet goes unseen.
		if err := at.Update(s, a.of(s)); err != nil {
			return fmt.Errorf("replacing the program at %s: %w", s, err)
		}
		if a.Dir == "" || !at.Pinned() {
			return nil
		}
		path := filepath.Join(a.Dir, s.Pin())
		if _, err := os.Lstat(path); err == nil {
			return nil
		}
		return at.Pin(path)
	}
	if err := a.Drop(s); err != nil {
		a.log.Debug("dropping a broken link", "site", s.String(), "error", err)
	}
	return a.attach(s, a.of(s), a.by)
}

// Close lets go of everything and leaves what is pinned in effect.
func (a *Attachments) Close() error {
	var errs []error
	for _, at := range a.At {
		errs = append(errs, at.Close())
	}
	clear(a.At)
	return errors.Join(errs...)
}

// Has reports whether the program of a site is attached by this run.
func (a *Attachments) Has(s Site) bool {
	_, ok := a.At[s]
	return ok
}

// Rank orders sites as they are attached: the ingress paths before the egress paths, and those that
// answers of pods come by before pods.
func (s Site) Rank() int {
	switch s.Hook {
	case FromUplink, FromTunnel, FromQueue:
		return 0
	case FromWorkload:
		return 1
	}
	return 2
}
