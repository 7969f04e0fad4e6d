// SPDX-License-Identifier: Apache-2.0

// Package cgroup gives each node of a lab a control group of its own in every
// hierarchy of the machine, be it cgroup v1, v2 or both side by side.
//
// A node's group is /<lab>-<node>. Its daemons run in /<lab>-<node>/sys and its
// pods below /<lab>-<node>/kubepods. Inside the node, a cgroup namespace makes
// /<lab>-<node> the root: what the node attaches to the root of its cgroup2 mount
// acts on this node's daemons and pods, and on nothing else of the machine.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Daemons is the group, below a node's own, of its processes that are not pods.
const Daemons = "sys"

// Hierarchy is one mounted tree of control groups.
type Hierarchy struct {
	Mount string // where the machine has it mounted
	V2    bool
	// Options mount it again (v1: its controllers or its name).
	Options string
}

// Load reads the machine's hierarchies from the mounts of this process.
func Load() ([]Hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the machine's mounts: %w", err)
	}
	defer f.Close()
	var out []Hierarchy
	s := bufio.NewScanner(f)
	for s.Scan() {
		if h, ok := parse(s.Text()); ok {
			out = append(out, h)
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("read the machine's mounts: %w", err)
	}
	if len(out) == 0 {
		return nil, errors.New("this machine has no control groups mounted")
	}
	for _, h := range out {
		if h.V2 {
			return out, nil
		}
	}
	return nil, errors.New("this machine has no cgroup2 mount, which socket programs attach to: mount one, for example mount -t cgroup2 none /sys/fs/cgroup/unified")
}

// parse reads a line of mountinfo (proc(5)); only mounts below /sys/fs/cgroup that
// show a whole hierarchy count, so that test mounts elsewhere are left alone.
func parse(line string) (Hierarchy, bool) {
	left, right, ok := strings.Cut(line, " - ")
	if !ok {
		return Hierarchy{}, false
	}
	l, r := strings.Fields(left), strings.Fields(right)
	if len(l) < 5 || len(r) < 3 || !whole(l[3]) || !strings.HasPrefix(l[4], "/sys/fs/cgroup") {
		return Hierarchy{}, false
	}
	h := Hierarchy{Mount: l[4], V2: r[0] == "cgroup2"}
	if r[0] != "cgroup" && !h.V2 {
		return Hierarchy{}, false
	}
	if h.V2 {
		return h, true
	}
	var opts []string
	for _, o := range strings.Split(r[2], ",") {
		switch {
		case o == "rw" || o == "ro" || o == "xattr" || strings.HasPrefix(o, "release_agent="):
		case strings.HasPrefix(o, "name="):
			opts = append(opts, "none", o)
		default:
			opts = append(opts, o)
		}
	}
	h.Options = strings.Join(opts, ",")
	return h, true
}

// whole says whether a mount shows a hierarchy from its root on. Seen from a cgroup
// namespace further down, that root is above: "/..", or "/../..".
func whole(root string) bool { return root != "" && strings.Trim(root, "/.") == "" }

// Create makes the group of a node, and its group for daemons, everywhere.
func Create(hs []Hierarchy, name string) error {
	Delegate(hs)
	for _, h := range hs {
		for _, dir := range []string{filepath.Join(h.Mount, name), filepath.Join(h.Mount, name, Daemons)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make control group %s: %w", dir, err)
			}
			if err := inheritCPUSet(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// Delegate hands the controllers on to the children of the roots, on a machine that
// has v2 only. A node does it for its own root, once no process is left there.
// Alongside v1, which has the controllers that count, v2 stays as it is. A controller
// that cannot be handed on is missed by the kubelet, which names it.
func Delegate(hs []Hierarchy) {
	if len(hs) != 1 || !hs[0].V2 {
		return
	}
	raw, err := os.ReadFile(filepath.Join(hs[0].Mount, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, c := range strings.Fields(string(raw)) {
		_ = os.WriteFile(filepath.Join(hs[0].Mount, "cgroup.subtree_control"), []byte("+"+c), 0o644)
	}
}

// inheritCPUSet fills in a v1 cpuset, which begins empty and then takes no process.
func inheritCPUSet(dir string) error {
	for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(dir, f))
		if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(own)) != "" {
			continue
		}
		parent, err := os.ReadFile(filepath.Join(filepath.Dir(dir), f))
		if errors.Is(err, fs.ErrNotExist) {
			continue // v2, where an empty set means the parent's
		}
		if err != nil {
			return fmt.Errorf("read the parent's %s of %s: %w", f, dir, err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), parent, 0o644); err != nil {
			return fmt.Errorf("set %s of %s: %w", f, dir, err)
		}
	}
	return nil
}

// Join moves the calling process, with all its threads, into a group.
func Join(hs []Hierarchy, name string) error {
	for _, h := range hs {
		f := filepath.Join(h.Mount, name, "cgroup.procs")
		if err := os.WriteFile(f, []byte("0"), 0o644); err != nil {
			return fmt.Errorf("enter control group %s: %w", filepath.Dir(f), err)
		}
	}
	return nil
}

// Mount mounts the hierarchies afresh over the same places, inside a cgroup
// namespace, so that the namespace's root is their root. The parent of the v1
// mounts becomes a tmpfs.
func Mount(hs []Hierarchy) error {
	const base = "/sys/fs/cgroup"
	if len(hs) != 1 || hs[0].Mount != base {
		if err := unix.Mount("cgroup", base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
			return fmt.Errorf("mount a tmpfs at %s: %w", base, err)
		}
	}
	for _, h := range hs {
		if err := os.MkdirAll(h.Mount, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", h.Mount, err)
		}
		fstype, opts := "cgroup", h.Options
		if h.V2 {
			fstype, opts = "cgroup2", ""
		}
		if err := unix.Mount(fstype, h.Mount, fstype, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, opts); err != nil {
			return fmt.Errorf("mount %s (%s) at %s: %w", fstype, opts, h.Mount, err)
		}
	}
	return nil
}

// Processes lists the processes in a group and below it, by their IDs in this PID
// namespace.
func Processes(hs []Hierarchy, name string) []int {
	seen := map[int]bool{}
	var out []int
	for _, h := range hs {
		_ = filepath.WalkDir(filepath.Join(h.Mount, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil // gone meanwhile
			}
			raw, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			for _, f := range strings.Fields(string(raw)) {
				if pid, err := strconv.Atoi(f); err == nil && pid > 0 && !seen[pid] {
					seen[pid] = true
					out = append(out, pid)
				}
			}
			return nil
		})
	}
	return out
}

// Find lists the groups below the root of any hierarchy that owns accepts.
func Find(hs []Hierarchy, owns func(name string) bool) []string {
	seen := map[string]bool{}
	var out []string
	for _, h := range hs {
		entries, _ := os.ReadDir(h.Mount)
		for _, e := range entries {
			if e.IsDir() && owns(e.Name()) && !seen[e.Name()] {
				seen[e.Name()] = true
				out = append(out, e.Name())
			}
		}
	}
	return out
}

// Remove removes a group with everything below it from every hierarchy. Groups
// stay busy for a moment after their last process ended, so it tries until the
// timeout.
func Remove(hs []Hierarchy, name string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		var errs []error
		for _, h := range hs {
			errs = append(errs, removeTree(filepath.Join(h.Mount, name)))
		}
		err := errors.Join(errs...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read control group %s: %w", dir, err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove control group %s: %w", dir, err)
	}
	return nil
}
