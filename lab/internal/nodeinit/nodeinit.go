// SPDX-License-Identifier: Apache-2.0

// Package nodeinit is the first process of a node: it makes the node's own view of
// the machine (file systems, control groups, host name) out of a Spec, and then
// runs and restarts the node's daemons. When it ends, the kernel ends everything
// else in the node.
package nodeinit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/weir-net/weir/lab/internal/cgroup"
	"github.com/weir-net/weir/lab/internal/nodespec"
)

// namespaces of a node in addition to its network namespace, which exists before.
const namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWCGROUP

// Launch starts a node's first process, running `self stage`, from a process that
// is in the node's network namespace already. It returns the new process's ID. The
// calling process has moved into the node's control group: the root of a cgroup
// namespace is where its maker was.
func Launch(spec *nodespec.Spec, specPath, logPath, self, stage string) (int, error) {
	hs, err := cgroup.Load()
	if err != nil {
		return 0, err
	}
	if err := cgroup.Create(hs, spec.Cgroup); err != nil {
		return 0, err
	}
	if err := cgroup.Join(hs, spec.Cgroup); err != nil {
		return 0, err
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, fmt.Errorf("open the log of node %s: %w", spec.Hostname, err)
	}
	defer log.Close()
	cmd := exec.Command(self, stage, specPath)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start the first process of node %s: %w", spec.Hostname, err)
	}
	// The new process left the group for its own; this one must not stay in it
	// either, because a v2 group with children may not hold processes.
	if err := cgroup.Join(hs, filepath.Join(spec.Cgroup, cgroup.Daemons)); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
}

// ReadSpec reads a Spec from a file.
func ReadSpec(path string) (*nodespec.Spec, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read node specification: %w", err)
	}
	s := &nodespec.Spec{}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("read node specification %s: %w", path, err)
	}
	return s, nil
}

// Run is the first process. It returns only with an error or when ctx ends.
func Run(ctx context.Context, log *slog.Logger, spec *nodespec.Spec) error {
	if os.Getpid() != 1 {
		return errors.New("this is not the first process of a node")
	}
	if err := setUp(log, spec); err != nil {
		return err
	}
	log.Info("node is set up", "node", spec.Hostname)
	return newSupervisor(log, spec.Daemons).run(ctx)
}

func setUp(log *slog.Logger, spec *nodespec.Spec) error {
	if err := syscall.Sethostname([]byte(spec.Hostname)); err != nil {
		return fmt.Errorf("set host name %s: %w", spec.Hostname, err)
	}
	hs, err := cgroup.Load()
	if err != nil {
		return err
	}
	if err := mountAll(log, spec, hs); err != nil {
		return err
	}
	if err := cgroup.Join(hs, cgroup.Daemons); err != nil {
		return err
	}
	cgroup.Delegate(hs)
	if err := writeFiles(spec.Files); err != nil {
		return err
	}
	if err := maskSysctls(spec.MaskedSysctls); err != nil {
		return err
	}
	if spec.ReadOnlyRoot {
		if err := readOnlyRoot(); err != nil {
			return err
		}
	}
	return shareMounts()
}

func writeFiles(files []nodespec.File) error {
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return fmt.Errorf("make the folder of %s: %w", f.Path, err)
		}
		// What is there may be the machine's own, also as a link to elsewhere.
		if err := os.Remove(f.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("replace %s: %w", f.Path, err)
		}
		var err error
		if f.Mode == nodespec.ModeLink {
			err = os.Symlink(f.Content, f.Path)
		} else {
			err = os.WriteFile(f.Path, []byte(f.Content), os.FileMode(f.Mode))
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	return nil
}

// StartTime is when a process began, in clock ticks since boot (proc(5), field 22).
// Together with its ID it names a process for good.
func StartTime(pid int) (uint64, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is a name in parentheses that may itself hold anything.
	i := strings.LastIndexByte(string(raw), ')')
	fields := strings.Fields(string(raw[i+1:]))
	if i < 0 || len(fields) < 20 {
		return 0, fmt.Errorf("process %d: unexpected stat %q", pid, raw)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}
