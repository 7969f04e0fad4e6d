// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/weir-net/weir/lab/internal/cgroup"
	"github.com/weir-net/weir/lab/internal/network"
	"github.com/weir-net/weir/lab/internal/plan"
	"github.com/weir-net/weir/lab/internal/progress"
)

// endTimeout is how long removal waits for processes and control groups to go.
const endTimeout = 2 * time.Minute

// Down removes a lab and everything it left on the machine, however far its start
// had come. It goes by what it finds: network namespaces and control groups with
// the lab's names, and the processes in them. A lab that is not there is no error.
func Down(name string, p *progress.Reporter) error {
	s, err := Load(name)
	if errors.Is(err, ErrNoLab) {
		p.Printf("lab %s: nothing to remove", name)
		return nil
	}
	if err != nil {
		return err
	}
	if s.Starter.PID != os.Getpid() && !s.Started && s.Starter.Alive() {
		return fmt.Errorf("lab %s is being started by process %d: interrupt that first, and it removes the lab itself", name, s.Starter.PID)
	}
	return p.Step("remove lab "+name, func() error { return remove(s) })
}

func remove(s *State) error {
	owns := func(scoped string) bool { return plan.Owns(s.Name, scoped) }
	hs, err := cgroup.Load()
	if err != nil {
		return err
	}
	if err := endProcesses(hs, owns); err != nil {
		return fmt.Errorf("lab %s: %w", s.Name, err)
	}
	var errs []error
	spaces, err := network.Find(owns)
	errs = append(errs, err)
	for _, scoped := range spaces {
		errs = append(errs, network.Remove(scoped))
	}
	for _, group := range cgroup.Find(hs, owns) {
		errs = append(errs, cgroup.Remove(hs, group, endTimeout))
	}
	if s.Data != "" {
		if err := os.RemoveAll(s.Data); err != nil {
			errs = append(errs, fmt.Errorf("remove the nodes' files: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("lab %s is not removed completely, run down again: %w", s.Name, err)
	}
	// Last, because it is what a second try goes by.
	return exclusively(s.forget)
}

// endProcesses ends every process that is in one of the lab's network namespaces
// or control groups. That is what makes a process the lab's: no process IDs are
// taken on trust.
func endProcesses(hs []cgroup.Hierarchy, owns func(string) bool) error {
	deadline := time.Now().Add(endTimeout)
	for {
		found, err := processes(hs, owns)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end", found)
		}
		for _, pid := range found {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("end process %d: %w", pid, err)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// namespaceID is what distinguishes namespaces (nsfs device and inode).
type namespaceID struct{ dev, ino uint64 }

func statNamespace(path string) (namespaceID, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return namespaceID{}, err
	}
	return namespaceID{dev: st.Dev, ino: st.Ino}, nil
}

// processes lists the processes of the lab, without this one.
func processes(hs []cgroup.Hierarchy, owns func(string) bool) ([]int, error) {
	self, err := statNamespace("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("look up this process's network namespace: %w", err)
	}
	spaces, err := network.Find(owns)
	if err != nil {
		return nil, err
	}
	ours := map[namespaceID]bool{}
	for _, scoped := range spaces {
		// A file that is no namespace yet, because its making was cut short, has an
		// identity that no process's namespace has.
		if id, err := statNamespace(network.Path(scoped)); err == nil && id != self {
			ours[id] = true
		}
	}
	found := map[int]bool{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if id, err := statNamespace(filepath.Join("/proc", e.Name(), "ns", "net")); err == nil && ours[id] {
			found[pid] = true
		}
	}
	for _, group := range cgroup.Find(hs, owns) {
		for _, pid := range cgroup.Processes(hs, group) {
			found[pid] = true
		}
	}
	delete(found, os.Getpid())
	var out []int
	for pid := range found {
		if !zombie(pid) {
			out = append(out, pid)
		}
	}
	return out, nil
}

// zombie says whether a process has ended and only waits to be buried.
func zombie(pid int) bool {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	for i := len(raw) - 1; i >= 0; i-- {
		if raw[i] == ')' {
			return i+2 < len(raw) && (raw[i+2] == 'Z' || raw[i+2] == 'X')
		}
	}
	return false
}
