// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Feature is something of the kernel that Weir needs or can use.
type Feature struct {
	Name     string // as users may look it up
	Since    string // kernel version that has it
	Needed   bool   // without it Weir does not run
	Purpose  string // what Weir does with it
	probe    func() error
	Hint     string // what to do when it is missing, in addition to a newer kernel
	Fallback string // what happens without it, when it is not needed
}

// The names of the features that Weir can do without.
const (
	FeatureSetRetval = "bpf_set_retval in socket-address programs"
	FeatureTCX       = "tcx links"
)

// Finding is a feature with what the probe found: nil, ebpf.ErrNotSupported or why it could not
// determine it.
type Finding struct {
	Feature
	Err error
}

// Missing reports whether the kernel lacks the feature.
func (f Finding) Missing() bool { return errors.Is(f.Err, ebpf.ErrNotSupported) }

// Features returns what Weir looks for, in the order of age.
func Features() []Feature {
	helper := func(t ebpf.ProgramType, fn asm.BuiltinFunc) func() error {
		return func() error { return features.HaveProgramHelper(t, fn) }
	}
	mapType := func(t ebpf.MapType) func() error { return func() error { return features.HaveMapType(t) } }
	return []Feature{
		{Name: "LRU hash maps", Since: "4.10", Needed: true, Purpose: "connection tables", probe: mapType(ebpf.LRUHash)},
		{Name: "LPM trie maps", Since: "4.11", Needed: true, Purpose: "routes and CIDRs of policies", probe: mapType(ebpf.LPMTrie)},
		{Name: "cgroup socket-address programs", Since: "4.17", Needed: true, Purpose: "Services for sockets",
			probe: func() error { return features.HaveProgramType(ebpf.CGroupSockAddr) }, Hint: "CONFIG_CGROUP_BPF=y"},
		{Name: "bpf_fib_lookup in tc programs", Since: "4.18", Needed: true, Purpose: "next hops", probe: helper(ebpf.SchedCLS, asm.FnFibLookup)},
		{Name: "bpf_jiffies64", Since: "5.6", Needed: true, Purpose: "time-outs of connections", probe: helper(ebpf.SchedCLS, asm.FnJiffies64)},
		{Name: "bpf_get_netns_cookie in socket-address programs", Since: "5.8", Needed: true, Purpose: "telling the node's sockets from those of pods",
			probe: helper(ebpf.CGroupSockAddr, asm.FnGetNetnsCookie)},
		{Name: "bpf_redirect_neigh", Since: "5.10", Needed: true, Purpose: "sending to the next hop", probe: helper(ebpf.SchedCLS, asm.FnRedirectNeigh)},
		{Name: "bpf_redirect_peer", Since: "5.10", Needed: true, Purpose: "sending to pods of this node", probe: helper(ebpf.SchedCLS, asm.FnRedirectPeer)},
		{Name: "SO_NETNS_COOKIE", Since: "5.14", Needed: true, Purpose: "telling the node's sockets from those of pods", probe: probeNetnsCookie},
		{Name: FeatureSetRetval, Since: "5.18", Purpose: "telling a program that a Service has no endpoints",
			probe: helper(ebpf.CGroupSockAddr, asm.FnSetRetval), Fallback: "connect() to a Service without endpoints fails with EPERM instead of ECONNREFUSED"},
		{Name: FeatureTCX, Since: "6.6", Purpose: "attaching to interfaces", probe: probeTCX, Hint: "CONFIG_NET_XGRESS=y",
			Fallback: "clsact filters take their place; other programs that add filters before them see packets first"},
	}
}

// Probe looks for every feature. It loads and forgets small programs and changes nothing. The error
// is not nil when a needed feature is missing or could not be probed; it names all of them, and the
// kernel.
func Probe() ([]Finding, error) {
	release := Release()
	if err := mayLoad(); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", release, err)
	}
	var findings []Finding
	var errs []error
	for _, f := range Features() {
		found := Finding{Feature: f, Err: f.probe()}
		findings = append(findings, found)
		if err := found.problem(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return findings, fmt.Errorf("kernel %s cannot carry Weir: %w", release, errors.Join(errs...))
	}
	return findings, nil
}

func (f Finding) problem() error {
	switch {
	case f.Err == nil || !f.Needed:
		return nil
	case f.Missing():
		hint := ""
		if f.Hint != "" {
			hint = "; if this kernel is newer, it was built without " + f.Hint
		}
		return fmt.Errorf("it has no %s (%s), which exists since Linux %s%s", f.Name, f.Purpose, f.Since, hint)
	default:
		return fmt.Errorf("probing for %s: %w", f.Name, f.Err)
	}
}

// Lacks reports whether the kernel lacks one of Features.
func Lacks(name string) bool {
	for _, f := range Features() {
		if f.Name == name {
			return errors.Is(f.probe(), ebpf.ErrNotSupported)
		}
	}
	return true
}

// Release returns the running kernel's release, as uname -r prints it.
func Release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// mayLoad distinguishes a kernel that lacks features from a process that lacks rights.
func mayLoad() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err == nil {
		return prog.Close()
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("loading an eBPF program is not permitted: run as root with CAP_BPF and CAP_NET_ADMIN, and with kernel.unprivileged_bpf_disabled or lockdown not in the way: %w", err)
	}
	return fmt.Errorf("loading an eBPF program: %w", err)
}

func probeNetnsCookie() error {
	_, err := NetnsCookie()
	if errors.Is(err, unix.ENOPROTOOPT) {
		return ebpf.ErrNotSupported
	}
	return err
}

// probeTCX asks to attach to an interface that cannot exist: a kernel with tcx answers that there
// is no such interface, one without that it does not know the request.
func probeTCX() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		return err
	}
	defer prog.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: prog, Attach: ebpf.AttachTCXIngress})
	switch {
	case err == nil:
		return l.Close()
	case errors.Is(err, ebpf.ErrNotSupported):
		return ebpf.ErrNotSupported
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EINVAL):
		return nil
	}
	return err
}
