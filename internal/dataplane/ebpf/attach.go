package ebpf

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
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// hook is what a program is attached as. Its name is the program's without the prefix.
type hook struct {
	name string
	at   ebpf.AttachType
}

var (
	fromWorkload = hook{"from_workload", ebpf.AttachTCXIngress}
	toWorkload   = hook{"to_workload", ebpf.AttachTCXEgress}
	fromUplink   = hook{"from_uplink", ebpf.AttachTCXIngress}
	toUplink     = hook{"to_uplink", ebpf.AttachTCXEgress}
	fromTunnel   = hook{"from_tunnel", ebpf.AttachTCXIngress}

	cgroupHooks = []hook{
		{"connect4", ebpf.AttachCGroupInet4Connect}, {"connect6", ebpf.AttachCGroupInet6Connect},
		{"sendmsg4", ebpf.AttachCGroupUDP4Sendmsg}, {"sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
		{"recvmsg4", ebpf.AttachCGroupUDP4Recvmsg}, {"recvmsg6", ebpf.AttachCGroupUDP6Recvmsg},
		{"getpeername4", ebpf.AttachCgroupInet4GetPeername}, {"getpeername6", ebpf.AttachCgroupInet6GetPeername},
	}

	// cgroupHooks6 are those of the programs for IPv6. On each hook both families' programs are
	// attached and all run (links always share a hook): a socket address is of one family, which
	// the other's program leaves alone, so their order is no matter.
	cgroupHooks6 = []hook{
		{ipv6Prefix + "connect6", ebpf.AttachCGroupInet6Connect}, {ipv6Prefix + "sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
		{ipv6Prefix + "recvmsg6", ebpf.AttachCGroupUDP6Recvmsg}, {ipv6Prefix + "getpeername6", ebpf.AttachCgroupInet6GetPeername},
	}
)

// ipv6Prefix is before the names of IPv6's own hooks.
const ipv6Prefix = "ipv6-"

// site is one place where a program is attached: a hook of an interface, or of the control group
// when ifindex is 0.
type site struct {
	ifindex int
	hook    hook
}

// pin is the name of a site's link below the folder of links.
func (s site) pin() string {
	if s.ifindex == 0 {
		return "cgroup-" + s.hook.name
	}
	return strconv.Itoa(s.ifindex) + "-" + s.hook.name
}

func (s site) String() string {
	if s.ifindex == 0 {
		return s.hook.name + " of the control group"
	}
	return fmt.Sprintf("%s of interface %d", s.hook.name, s.ifindex)
}

// errAbsent says that a site's interface is not there.
var errAbsent = errors.New("no such interface")

// attacher attaches programs to sites: by links where the kernel has tcx, by clsact where it does
// not, and where a link takes too long.
type attacher interface {
	// attach puts prog at a site. The error is errAbsent when the interface does not exist.
	attach(s site, prog *ebpf.Program) (attachment, error)
	// reuse takes over what an earlier run pinned at path, when it is alive and belongs to the
	// site.
	reuse(s site, path string) (attachment, error)
	// links says whether interfaces get links.
	links() bool
}

// attachment is a program at its site.
type attachment interface {
	// update replaces the program without a moment when none is there.
	update(s site, prog *ebpf.Program) error
	// check says why the program is no longer in effect; nil when it is.
	check(s site, prog ebpf.ProgramID) error
	// pin makes the attachment outlive the process, when it needs a pin for that.
	pin(path string) error
	pinned() bool
	// detach takes the program away.
	detach(s site) error
	// close lets go of the attachment; a pinned one stays in effect.
	close() error
}

// bpfLinks attaches by bpf_link: tcx (Linux 6.6) and control groups (5.7).
type bpfLinks struct {
	cgroup string
}

type bpfLink struct {
	link.Link
	cgroup uint64 // id that the link should have
}

func (b bpfLinks) attach(s site, prog *ebpf.Program) (attachment, error) {
	if s.hook.at == ebpf.AttachXDP {
		return attachXDP(s, prog)
	}
	if s.ifindex == 0 {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: b.cgroup, Attach: s.hook.at, Program: prog})
		if err != nil {
			return nil, fmt.Errorf("attaching to control group %s: %w", b.cgroup, err)
		}
		id, err := cgroupID(b.cgroup)
		return bpfLink{l, id}, err
	}
	// Before whatever else is attached: others must not see packets that policy denies.
	l, err := link.AttachTCX(link.TCXOptions{Interface: s.ifindex, Program: prog, Attach: s.hook.at, Anchor: link.Head()})
	if errors.Is(err, unix.ENODEV) {
		return nil, errAbsent
	}
	if err != nil {
		return nil, fmt.Errorf("attaching %s to interface %d: %w", s.hook.name, s.ifindex, err)
	}
	return bpfLink{Link: l}, nil
}

func (bpfLinks) links() bool { return true }

func (b bpfLinks) reuse(s site, path string) (attachment, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil, err
	}
	a := bpfLink{Link: l}
	if s.ifindex == 0 {
		if a.cgroup, err = cgroupID(b.cgroup); err != nil {
			l.Close()
			return nil, err
		}
	}
	if err := a.check(s, 0); err != nil {
		l.Close()
		return nil, err
	}
	return a, nil
}

func (l bpfLink) check(s site, prog ebpf.ProgramID) error {
	info, err := l.Info()
	if err != nil {
		return err
	}
	if prog != 0 && info.Program != prog {
		return fmt.Errorf("another program (id %d) was put into the link", info.Program)
	}
	if tcx := info.TCX(); tcx != nil {
		if int(tcx.Ifindex) != s.ifindex || ebpf.AttachType(tcx.AttachType) != s.hook.at {
			return errors.New("the link was detached from its interface")
		}
		return nil
	}
	if xdp := info.XDP(); xdp != nil {
		if int(xdp.Ifindex) != s.ifindex || s.hook.at != ebpf.AttachXDP {
			return errors.New("the link was detached from its interface")
		}
		return nil
	}
	if cg := info.Cgroup(); cg != nil && s.ifindex == 0 {
		if cg.CgroupId != l.cgroup || ebpf.AttachType(cg.AttachType) != s.hook.at {
			return errors.New("the link was detached from its control group")
		}
		return nil
	}
	return errors.New("the link is of another kind")
}

func (l bpfLink) update(_ site, prog *ebpf.Program) error { return l.Link.Update(prog) }
func (l bpfLink) pin(path string) error                   { return pinOver(l.Link, path) }
func (l bpfLink) pinned() bool                            { return true }
func (l bpfLink) close() error                            { return l.Link.Close() }

func (l bpfLink) detach(site) error {
	if err := l.Link.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) {
		return err
	}
	return nil
}

// cgroupID is the inode number of a folder of the unified hierarchy (kernfs), on 64-bit kernels.
func cgroupID(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("control group %s: %w", path, err)
	}
	return st.Ino, nil
}

// attachments are all programs at their sites.
type attachments struct {
	by   attacher
	dir  string // of pins; empty = nothing is pinned
	prog map[string]*ebpf.Program
	ids  map[string]ebpf.ProgramID
	at   map[site]attachment
	back map[site]backed // what stands behind links
	log  *slog.Logger

	reused int // links of an earlier run that were taken over
}

func newAttachments(by attacher, dir string, log *slog.Logger) *attachments {
	return &attachments{by: by, dir: dir, prog: map[string]*ebpf.Program{}, ids: map[string]ebpf.ProgramID{}, at: map[site]attachment{}, back: map[site]backed{}, log: log}
}

// offer makes programs ready to be attached: that of hook prefix + name is weir_name.
func (a *attachments) offer(prefix string, programs map[string]*ebpf.Program) error {
	for name, p := range programs {
		id, err := programID(p)
		if err != nil {
			return fmt.Errorf("program %s: %w", name, err)
		}
		name = prefix + strings.TrimPrefix(name, "weir_")
		a.prog[name], a.ids[name] = p, id
	}
	return nil
}

func programID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	return id, nil
}

// use puts another program to the sites of a hook, and to those that come.
func (a *attachments) use(h hook, prog *ebpf.Program) error {
	id, err := programID(prog)
	if err != nil || a.ids[h.name] == id {
		return err
	}
	a.prog[h.name], a.ids[h.name] = prog, id
	var errs []error
	for s, at := range a.at {
		if s.hook == h {
			errs = append(errs, at.update(s, prog))
		}
	}
	return errors.Join(errs...)
}

// withdraw detaches the programs of some hooks wherever they are.
func (a *attachments) withdraw(hooks []hook) error {
	var errs []error
	for s := range a.at {
		if slices.Contains(hooks, s.hook) {
			errs = append(errs, a.drop(s))
		}
	}
	for _, h := range hooks {
		delete(a.prog, h.name)
		delete(a.ids, h.name)
	}
	return errors.Join(errs...)
}

// ensure attaches the program of a site, or, where an earlier run left it attached, replaces it in
// place. With quick a site that has no link yet begins with what attaches without waiting; settle
// does the rest later.
func (a *attachments) ensure(s site, quick bool) error {
	if _, ok := a.at[s]; ok {
		return nil
	}
	prog := a.prog[s.hook.name]
	if prog == nil {
		return fmt.Errorf("no program for %s", s)
	}
	if quick && s.ifindex != 0 && !a.hasPin(s) {
		if err := a.attach(s, prog, clsact{}); err == nil || errors.Is(err, errAbsent) {
			return err
		}
		// Somebody else's ingress qdisc is there, for one: a link is slower and does not mind.
	}
	if a.dir != "" {
		path := filepath.Join(a.dir, s.pin())
		at, err := a.by.reuse(s, path)
		if err == nil {
			if err := at.update(s, prog); err != nil {
				at.close()
				return fmt.Errorf("replacing the program at %s: %w", s, err)
			}
			a.at[s] = at
			a.reused++
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
	if at, err := (clsact{}).reuse(s, ""); err == nil && s.ifindex != 0 && s.hook.at != ebpf.AttachXDP && a.at[s].pinned() && !ofWorkload(s.hook) {
		return at.detach(s)
	}
	return nil // a pod's filters stay behind its links: see backstop
}

// hasPin reports whether a run before this one may have left a link at a site: its program comes
// before any filter.
func (a *attachments) hasPin(s site) bool {
	if a.dir == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(a.dir, s.pin()))
	return !errors.Is(err, fs.ErrNotExist)
}

// settle gives one site that began quickly its link.
func (a *attachments) settle() error {
	if !a.by.links() {
		return nil
	}
	for s, at := range a.at {
		if at.pinned() || s.ifindex == 0 {
			continue
		}
		if err := a.attach(s, a.prog[s.hook.name], a.by); err != nil {
			return err
		}
		// The link comes before the filter: from here on that sees nothing, unless the link is
		// lost.
		if ofWorkload(s.hook) {
			return nil
		}
		return at.detach(s)
	}
	return nil
}

func (a *attachments) attach(s site, prog *ebpf.Program, by attacher) error {
	at, err := by.attach(s, prog)
	if err != nil {
		return err
	}
	if a.dir != "" && at.pinned() {
		if err := at.pin(filepath.Join(a.dir, s.pin())); err != nil {
			return errors.Join(fmt.Errorf("pinning the link of %s: %w", s, err), at.close())
		}
	}
	a.at[s] = at
	return nil
}

// retain detaches everything but the given sites; with strays also what an earlier run left pinned.
func (a *attachments) retain(wanted map[site]bool, strays bool) error {
	var errs []error
	for s, at := range a.at {
		switch {
		case wanted[s]:
		case at.pinned() && (s.hook == fromWorkload || s.hook == toWorkload):
			errs = append(errs, a.dropLater(s))
		default:
			errs = append(errs, a.drop(s), a.dropBackstop(s))
		}
	}
	if a.dir == "" || !strays {
		return errors.Join(errs...)
	}
	keep := map[string]bool{}
	for s := range wanted {
		keep[s.pin()] = true
	}
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("looking for pinned links: %w", err))...)
	}
	for _, e := range entries {
		if keep[e.Name()] {
			continue
		}
		// Without a pin and without a holder the kernel detaches it.
		if err := os.Remove(filepath.Join(a.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing a link that is no longer wanted: %w", err))
		}
	}
	return errors.Join(errs...)
}

// drop detaches one site.
func (a *attachments) drop(s site) error {
	at := a.at[s]
	return errors.Join(a.forget(s), at.detach(s), at.close())
}

// unpinFlows removes a site and its pin, and leaves the program attached while somebody holds it.
func (a *attachments) forget(s site) error {
	delete(a.at, s)
	delete(a.back, s)
	if a.dir == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(a.dir, s.pin())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the link of %s: %w", s, err)
	}
	return nil
}

// lingering is how long the interface of a pod that is gone is given to go.
const lingering = 3 * time.Second

// dropLater detaches a pod's interface once that is gone, which costs nothing then; to detach a
// link from an interface holds up other pods' starts for a grace period of RCU. Until then the
// program drops what comes from there: the interface has no address any more.
func (a *attachments) dropLater(s site) error {
	at := a.at[s]
	time.AfterFunc(lingering, func() {
		if err := at.close(); err != nil {
			a.log.Debug("letting go of a link", "site", s.String(), "error", err)
		}
	})
	return a.forget(s)
}

// broken returns the sites whose program is no longer in effect or no longer pinned, and why.
func (a *attachments) broken() map[site]error {
	out := map[site]error{}
	for s, at := range a.at {
		if err := at.check(s, a.ids[s.hook.name]); err != nil {
			out[s] = err
			continue
		}
		if a.dir == "" || !at.pinned() {
			continue
		}
		if _, err := os.Lstat(filepath.Join(a.dir, s.pin())); err != nil {
			out[s] = fmt.Errorf("its pin is gone: %w", err)
		}
	}
	return out
}

// renew attaches a broken site again.
func (a *attachments) renew(s site) error {
	at := a.at[s]
	if err := at.check(s, 0); err == nil {
		// Only its pin or its program is wrong: repair it in place, no packet goes unseen.
		if err := at.update(s, a.prog[s.hook.name]); err != nil {
			return fmt.Errorf("replacing the program at %s: %w", s, err)
		}
		if a.dir == "" || !at.pinned() {
			return nil
		}
		path := filepath.Join(a.dir, s.pin())
		if _, err := os.Lstat(path); err == nil {
			return nil
		}
		return at.pin(path)
	}
	if err := a.drop(s); err != nil {
		a.log.Debug("dropping a broken link", "site", s.String(), "error", err)
	}
	return a.attach(s, a.prog[s.hook.name], a.by)
}

// close lets go of everything and leaves what is pinned in effect.
func (a *attachments) close() error {
	var errs []error
	for _, at := range a.at {
		errs = append(errs, at.close())
	}
	clear(a.at)
	return errors.Join(errs...)
}

// has reports whether the program of a site is attached by this run.
func (a *attachments) has(s site) bool {
	_, ok := a.at[s]
	return ok
}
