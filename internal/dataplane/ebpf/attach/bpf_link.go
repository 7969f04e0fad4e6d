// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
)

// BpfLinks attaches by bpf_link: tcx (Linux 6.6) and control groups (5.7).
type BpfLinks struct {
	Cgroup string
}

type BpfLink struct {
	link.Link
	cgroup uint64 // id that the link should have
}

func (b BpfLinks) attach(s Site, prog *ebpf.Program) (attachment, error) {
	if s.Hook.At == ebpf.AttachXDP {
		return attachXDP(s, prog)
	}
	if s.Ifindex == 0 {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: b.Cgroup, Attach: s.Hook.At, Program: prog})
		if err != nil {
			return nil, fmt.Errorf("attaching to control group %s: %w", b.Cgroup, err)
		}
		id, err := cgroupID(b.Cgroup)
		return BpfLink{l, id}, err
	}
	// Before whatever else is attached: others must not see packets that policy denies.
	l, err := link.AttachTCX(link.TCXOptions{Interface: s.Ifindex, Program: prog, Attach: s.Hook.At, Anchor: link.Head()})
	if errors.Is(err, unix.ENODEV) {
		return nil, ErrAbsent
	}
	if err != nil {
		return nil, fmt.Errorf("attaching %s to interface %d: %w", s.Hook.Name, s.Ifindex, err)
	}
	return BpfLink{Link: l}, nil
}

func (BpfLinks) links() bool { return true }

func (b BpfLinks) Reuse(s Site, path string) (attachment, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil, err
	}
	a := BpfLink{Link: l}
	if s.Ifindex == 0 {
		if a.cgroup, err = cgroupID(b.Cgroup); err != nil {
			l.Close()
			return nil, err
		}
	}
	if err := a.Check(s, 0); err != nil {
		l.Close()
		return nil, err
	}
	return a, nil
}

func (l BpfLink) Check(s Site, prog ebpf.ProgramID) error {
	info, err := l.Info()
	if err != nil {
		return err
	}
	if prog != 0 && info.Program != prog {
		return fmt.Errorf("another program (id %d) was put into the link", info.Program)
	}
	if tcx := info.TCX(); tcx != nil {
		if int(tcx.Ifindex) != s.Ifindex || ebpf.AttachType(tcx.AttachType) != s.Hook.At {
			return errors.New("the link was detached from its interface")
		}
		return nil
	}
	if xdp := info.XDP(); xdp != nil {
		if int(xdp.Ifindex) != s.Ifindex || s.Hook.At != ebpf.AttachXDP {
			return errors.New("the link was detached from its interface")
		}
		return nil
	}
	if cg := info.Cgroup(); cg != nil && s.Ifindex == 0 {
		if cg.CgroupId != l.cgroup || ebpf.AttachType(cg.AttachType) != s.Hook.At {
			return errors.New("the link was detached from its control group")
		}
		return nil
	}
	return errors.New("the link is of another kind")
}

func (l BpfLink) Update(_ Site, prog *ebpf.Program) error { return l.Link.Update(prog) }
func (l BpfLink) Pin(path string) error                   { return bpffs.PinOver(l.Link, path) }
func (l BpfLink) Pinned() bool                            { return true }
func (l BpfLink) Close() error                            { return l.Link.Close() }

func (l BpfLink) detach(Site) error {
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
