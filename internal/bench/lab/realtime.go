// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What is timed runs at real-time priority, so that whatever else the machine does has to wait for
// the fraction of a second that a run takes. The kernel keeps 5 % for the others in any case
// (kernel.sched_rt_runtime_us), and every run is bounded.

// Raise gives all threads of a process of this machine the lowest real-time priority (SCHED_FIFO
// 1). Groups of the cgroup-v1 hierarchy "cpu" have no real-time budget, so the process is moved to
// its root.
func Raise(pid int) error {
	err := os.WriteFile("/sys/fs/cgroup/cpu/cgroup.procs", []byte(strconv.Itoa(pid)), 0o644)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("moving process %d out of its CPU group: %w", pid, err)
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return fmt.Errorf("listing the threads of process %d: %w", pid, err)
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		priority := int32(1) // struct sched_param
		_, _, errno := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), unix.SCHED_FIFO, uintptr(unsafe.Pointer(&priority)))
		if errno != 0 && errno != unix.ESRCH {
			return fmt.Errorf("giving process %d real-time priority: %w", pid, errno)
		}
	}
	return nil
}

// raiseBelow raises the processes of weir-bench that descend from one of ours.
func raiseBelow(pid int) error {
	found := false
	for _, p := range descendants(pid) {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p))
		if err != nil || strings.TrimSpace(string(comm)) != "weir-bench" {
			continue
		}
		found = true
		if err := Raise(p); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("no weir-bench runs below process %d", pid)
	}
	return nil
}

// descendants of a process, itself included.
func descendants(pid int) []int {
	out := []int{pid}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for child := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				out = append(out, descendants(n)...)
			}
		}
	}
	return out
}

// Processes are the processes of a pod's container as this machine numbers them.
func (p Place) Processes(ctx context.Context) ([]int, error) {
	pidNamespace, err := p.Lab.Exec(ctx, p.Machine, "readlink", "/proc/"+p.pid+"/ns/pid")
	if err != nil {
		return nil, fmt.Errorf("looking for the processes of %v: %w", p, err)
	}
	links, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, l := range links {
		if to, err := os.Readlink(l); err != nil || to != pidNamespace {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(l, "/")[2]); err == nil {
			out = append(out, pid)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%v has no process on this machine", p)
	}
	return out, nil
}

// Bind binds all threads of a process of this machine to a CPU.
func Bind(pid, cpu int) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return fmt.Errorf("listing the threads of process %d: %w", pid, err)
	}
	var set unix.CPUSet
	set.Set(cpu)
	for _, t := range threads {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("binding process %d to CPU %d: %w", pid, cpu, err)
			}
		}
	}
	return nil
}
