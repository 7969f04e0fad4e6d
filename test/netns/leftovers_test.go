// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ours are names of what a run of these tests makes outside of its namespaces; they show its
// process.
var ours = regexp.MustCompile(`^wn([0-9]+)-[0-9]+-`)

// removeLeftovers removes what runs left that were killed: network namespaces, bpffs mounts,
// control groups. What belongs to a process that is alive, whichever it is, stays.
func removeLeftovers() error {
	var errs []error
	dead := func(dir string, remove func(path string) error) {
		all, err := os.ReadDir(dir)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
			return
		}
		for _, e := range all {
			m := ours.FindStringSubmatch(e.Name())
			if m == nil {
				continue
			}
			if pid, err := strconv.Atoi(m[1]); err != nil || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
				continue
			}
			errs = append(errs, remove(filepath.Join(dir, e.Name())))
		}
	}
	dead("/run/netns", func(path string) error {
		return errors.Join(endAll(filepath.Base(path)), exec.Command("ip", "netns", "del", filepath.Base(path)).Run())
	})
	dead("/run", func(path string) error {
		if err := unix.Unmount(path, 0); err != nil && !errors.Is(err, unix.EINVAL) { // not mounted
			return err
		}
		return os.Remove(path)
	})
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		dead(root, removeCgroups)
	}
	return errors.Join(errs...)
}

// endAll ends what still runs in a namespace: routers, BGP processes.
func endAll(netns string) error {
	out, err := exec.Command("ip", "netns", "pids", netns).Output()
	for _, text := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(text); err == nil {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
	}
	return err
}

// removeCgroups removes a control group and those in it.
func removeCgroups(path string) error {
	inner, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range inner {
		if e.IsDir() {
			errs = append(errs, removeCgroups(filepath.Join(path, e.Name())))
		}
	}
	return errors.Join(append(errs, os.Remove(path))...)
}

// unmount unmounts a file system. It waits for what holds a reference for a moment only, as whoever
// looks at all mounts of the machine does; the error names the processes that keep files open.
func unmount(path string) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Unmount(path, 0)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w; held by %v", err, holders(path))
		}
	}
}

// holders are the open files and folders of processes below path.
func holders(path string) []string {
	var out []string
	for _, pattern := range []string{"/proc/[0-9]*/fd/*", "/proc/[0-9]*/cwd", "/proc/[0-9]*/root"} {
		links, _ := filepath.Glob(pattern)
		for _, link := range links {
			if to, err := os.Readlink(link); err == nil && (to == path || strings.HasPrefix(to, path+"/")) {
				out = append(out, link+" -> "+to)
			}
		}
	}
	return out
}
