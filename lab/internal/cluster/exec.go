// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netns"
	"github.com/weir-net/weir/lab/internal/cgroup"
	"github.com/weir-net/weir/lab/internal/network"
	"github.com/weir-net/weir/lab/internal/nodespec"
	"github.com/weir-net/weir/lab/internal/plan"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Exec replaces this process by a command inside a machine of the lab: in all
// namespaces and the control group of a node, in the network namespace of a client
// or of the router. It returns only with an error.
func (s *State) Exec(machine string, args []string) error {
	l, err := s.plan()
	if err != nil {
		return err
	}
	m, ok := l.Machine(machine)
	switch {
	case machine == plan.Router || machine == plan.Switch:
	case !ok:
		return fmt.Errorf("lab %s has no machine %q: it has %s", s.Name, machine, strings.Join(names(l), ", "))
	case m.IsNode():
		return s.execNode(machine, args)
	}
	return s.ExecNetwork(machine, args)
}

func names(l *plan.Lab) []string {
	out := []string{plan.Router, plan.Switch}
	for _, m := range l.Machines {
		out = append(out, m.Name)
	}
	return out
}

// ExecNetwork is Exec with this machine's own files: only the network is the
// lab's.
func (s *State) ExecNetwork(machine string, args []string) error {
	path := []string{}
	if s.Weir != "" {
		path = append(path, s.Weir)
	}
	for _, f := range s.Folders {
		path = append(path, filepath.Join(s.Programs, f))
	}
	for k, v := range map[string]string{
		"PATH": strings.Join(append(path, os.Getenv("PATH")), ":"), "KUBECONFIG": KubeconfigPath(s.Name),
		// Labs have the same addresses, by which kubectl keeps what it knows of a cluster's
		// kinds for hours: another lab's, with Calico's, would be taken for this one's.
		"KUBECACHEDIR": filepath.Join(filepath.Dir(KubeconfigPath(s.Name)), "kubectl"),
	} {
		if err := os.Setenv(k, v); err != nil {
			return fmt.Errorf("set %s: %w", k, err)
		}
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	// The thread that calls exec is the one that the process goes on with.
	runtime.LockOSThread()
	target, err := netns.GetFromPath(network.Path(plan.Scoped(s.Name, machine)))
	if err != nil {
		return fmt.Errorf("open the network namespace of %s: %w", machine, err)
	}
	if err := netns.Set(target); err != nil {
		return fmt.Errorf("enter the network namespace of %s: %w", machine, err)
	}
	return unix.Exec(program, args, os.Environ())
}

// enter is the shell's part: to go where the caller was, if the node has that
// folder.
const enter = `cd "$1" 2>/dev/null; shift; exec "$@"`

func (s *State) nsenter(node string, args []string) ([]string, error) {
	p, err := s.initProcess(node)
	if err != nil {
		return nil, err
	}
	if !p.Alive() {
		return nil, fmt.Errorf("node %s of lab %s has ended: remove the lab with: weir-lab down --name %s", node, s.Name, s.Name)
	}
	wd, err := os.Getwd()
	if err != nil {
		wd = "/"
	}
	return append([]string{
		"nsenter", "--target", strconv.Itoa(p.PID), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--",
		"env", "PATH=" + nodespec.SearchPath(s.Folders), "KUBECONFIG=" + nodespec.AdminConfig, "WEIR_LAB_NODE=" + node,
		"sh", "-c", enter, "sh", wd,
	}, args...), nil
}

// execNode moves into the node's control group first: what the node does to its own
// processes' sockets must hold for this one too.
func (s *State) execNode(node string, args []string) error {
	argv, err := s.nsenter(node, args)
	if err != nil {
		return err
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("find nsenter (package util-linux): %w", err)
	}
	hs, err := cgroup.Load()
	if err != nil {
		return err
	}
	if err := cgroup.Join(hs, filepath.Join(plan.Scoped(s.Name, node), cgroup.Daemons)); err != nil {
		return err
	}
	return unix.Exec(program, argv, os.Environ())
}

// LoadImage imports an image archive into all nodes.
func (s *State) LoadImage(ctx context.Context, archive string) error {
	l, err := s.plan()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range l.Nodes() {
		g.Go(func() error {
			// The archive may be in a folder that the node does not have.
			f, err := os.Open(archive)
			if err != nil {
				return fmt.Errorf("read image archive: %w", err)
			}
			defer f.Close()
			argv, err := s.nsenter(m.Name, []string{"sh", "-c", awaitContainerd + "exec ctr --namespace k8s.io images import -"})
			if err != nil {
				return err
			}
			cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
			cmd.Stdin = f
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("import %s into %s: %w: %s", filepath.Base(archive), m.Name, errors.Join(err, ctx.Err()), strings.TrimSpace(string(out)))
			}
			return nil
		})
	}
	return g.Wait()
}

// awaitContainerd waits up to 20 s for a node that is just starting.
const awaitContainerd = `i=0; while [ $i -lt 200 ] && ! ctr version >/dev/null 2>&1; do i=$((i+1)); sleep 0.1; done; `
