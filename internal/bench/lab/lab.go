// SPDX-License-Identifier: Apache-2.0

// Package lab runs the demo's and the benchmarks' parts in labs: it calls weir-lab, and finds pods
// and runs programs where they are. It knows labs only by that program's commands.
package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weir-net/weir/internal/bench"
)

// Machines of every lab, by the lab's plan.
var (
	ControlPlane = netip.MustParseAddr("172.31.1.8")
	Worker1      = netip.MustParseAddr("172.31.1.207")
	Worker2      = netip.MustParseAddr("172.31.1.208")
	Client1      = netip.MustParseAddr("172.31.1.55")
	Client2      = netip.MustParseAddr("172.31.1.162")
)

// Lab is a lab that was started. Its methods may be used by several goroutines.
type Lab struct {
	Name  string
	Proxy string // as weir-lab's --proxy
	// RealTime makes Serve and Measure raise their programs: see Raise.
	RealTime bool
	bin      string // folder of our programs, absolute
	out      io.Writer
}

// New names a lab without starting it. bin is the folder of weir-lab and weir-bench; what weir-lab
// says goes to out.
func New(name, proxy, bin string, out io.Writer) (*Lab, error) {
	abs, err := filepath.Abs(bin)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", bin, err)
	}
	for _, program := range []string{"weir-lab", "weir-bench"} {
		if _, err := os.Stat(filepath.Join(abs, program)); err != nil {
			return nil, fmt.Errorf("%s is not built: run make build: %w", program, err)
		}
	}
	return &Lab{Name: name, Proxy: proxy, bin: abs, out: out}, nil
}

// Up removes what an earlier run may have left, and starts the lab.
func (l *Lab) Up(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join("/run/weir-lab", l.Name)); err == nil {
		if err := l.Down(); err != nil {
			return err
		}
	}
	c := l.command(ctx, "up", "--proxy", l.Proxy, "--workers", "2")
	c.Stdout, c.Stderr = l.out, l.out
	if err := c.Run(); err != nil {
		return fmt.Errorf("bringing lab %s up: %w", l.Name, cause(ctx, err))
	}
	return nil
}

// Down removes the lab. It does not listen to Ctrl-C: it is what one waits for after that.
func (l *Lab) Down() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := l.command(ctx, "down")
	c.Stdout, c.Stderr = l.out, l.out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Run(); err != nil {
		return fmt.Errorf("removing lab %s: %w", l.Name, cause(ctx, err))
	}
	return nil
}

func (l *Lab) command(ctx context.Context, verb string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(l.bin, "weir-lab"), append([]string{verb, "--name", l.Name}, args...)...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = time.Minute
	return c
}

// cause prefers the reason for which ctx ended.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// output runs a command and returns what it prints; its error carries what it says on the other
// output.
func output(ctx context.Context, c *exec.Cmd, stdin string) (string, error) {
	var out, say bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &say
	c.WaitDelay = 2 * time.Second
	if err := c.Run(); err != nil {
		if ctx.Err() != nil {
			return out.String(), context.Cause(ctx)
		}
		if text := strings.TrimSpace(say.String()); text != "" {
			return out.String(), errors.New(text)
		}
		return out.String(), err
	}
	return strings.TrimSpace(out.String()), nil
}

// Kubectl runs kubectl as the lab's administrator.
func (l *Lab) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, filepath.Join(l.bin, "weir-lab"), append([]string{"kubectl", "--name", l.Name}, args...)...)
	out, err := output(ctx, c, stdin)
	if err != nil {
		return out, fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// Weir runs the CLI as the lab's administrator.
func (l *Lab) Weir(ctx context.Context, args ...string) (string, error) {
	out, err := l.Exec(ctx, "client1", append([]string{filepath.Join(l.bin, "weir")}, args...)...)
	if err != nil {
		return out, fmt.Errorf("weir %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// Exec runs a command on a machine of the lab and returns what it prints.
func (l *Lab) Exec(ctx context.Context, machine string, args ...string) (string, error) {
	return output(ctx, l.command(ctx, "exec", append([]string{machine, "--"}, args...)...), "")
}

// Place is where a program can run: a machine, or a pod's network on its node.
type Place struct {
	Lab     *Lab
	Machine string
	Pod     string // name, for messages; "" = the machine itself
	pid     string // of a process of the pod, in the node's process namespace
	Addr    netip.Addr
}

// Host is a machine itself.
func (l *Lab) Host(machine string, addr netip.Addr) Place {
	return Place{Lab: l, Machine: machine, Addr: addr}
}

// Pod waits for a pod of the default namespace to be ready, and finds it.
func (l *Lab) Pod(ctx context.Context, name string) (Place, error) {
	if _, err := l.Kubectl(ctx, "", "wait", "--for=condition=Ready", "--timeout=60s", "pod/"+name); err != nil {
		return Place{}, err
	}
	text, err := l.Kubectl(ctx, "", "get", "pod", name, "-o",
		"jsonpath={.spec.nodeName} {.status.podIP} {.status.containerStatuses[0].containerID}")
	if err != nil {
		return Place{}, err
	}
	f := strings.Fields(text)
	if len(f) != 3 {
		return Place{}, fmt.Errorf("pod %s has no node, address or container yet: %q", name, text)
	}
	p := Place{Lab: l, Machine: f[0], Pod: name}
	if p.Addr, err = netip.ParseAddr(f[1]); err != nil {
		return Place{}, fmt.Errorf("pod %s: %w", name, err)
	}
	id := strings.TrimPrefix(f[2], "containerd://")
	tasks, err := l.Exec(ctx, p.Machine, "ctr", "--namespace", "k8s.io", "tasks", "list")
	if err != nil {
		return Place{}, fmt.Errorf("listing containers of %s: %w", p.Machine, err)
	}
	for line := range strings.Lines(tasks) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == id {
			p.pid = f[1]
			return p, nil
		}
	}
	return Place{}, fmt.Errorf("pod %s: container %s does not run on %s", name, id, p.Machine)
}

// PID is the pod's first process as its node numbers it.
func (p Place) PID() string { return p.pid }

func (p Place) String() string {
	if p.Pod != "" {
		return "pod " + p.Pod
	}
	return p.Machine
}

// argv is weir-bench with arguments, in the pod's network and in its node's control group.
func (p Place) argv(args []string) []string {
	// By name: the lab mounts the folder into its nodes, wherever it lies on the machine.
	argv := append([]string{"weir-bench"}, args...)
	if p.pid != "" {
		argv = append([]string{"nsenter", "--net=/proc/" + p.pid + "/ns/net", "--"}, argv...)
	}
	return argv
}

// Bench runs weir-bench there and returns what it prints.
func (p Place) Bench(ctx context.Context, args ...string) (string, error) {
	out, err := p.Lab.Exec(ctx, p.Machine, p.argv(args)...)
	if err != nil {
		return out, fmt.Errorf("%v of lab %s: %w", p, p.Lab.Name, err)
	}
	return out, nil
}

// Measure runs a client of weir-bench there and reads its result.
func (p Place) Measure(ctx context.Context, args ...string) (bench.Run, error) {
	var r bench.Run
	c := p.Lab.command(ctx, "exec", append([]string{p.Machine, "--"}, p.argv(append(args, "--on-word"))...)...)
	child, err := start(ctx, c)
	if err != nil {
		return r, fmt.Errorf("%v of lab %s: %w", p, p.Lab.Name, err)
	}
	if p.Lab.RealTime {
		err = raiseBelow(c.Process.Pid)
	}
	if err == nil {
		_, err = io.WriteString(child.stdin, "go\n")
	}
	out, waitErr := child.finish(ctx)
	if err = errors.Join(err, waitErr); err != nil {
		return r, fmt.Errorf("%v of lab %s: %w", p, p.Lab.Name, err)
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return r, fmt.Errorf("reading the result of %v: %w", p, err)
	}
	return r, nil
}

// Serve starts a server of weir-bench there. It ends with the returned function, or with this
// process.
func (p Place) Serve(ctx context.Context, args ...string) (stop func(), err error) {
	c := p.Lab.command(context.Background(), "exec", append([]string{p.Machine, "--"}, p.argv(append([]string{"server"}, args...))...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us
	child, err := start(ctx, c)
	if err == nil && p.Lab.RealTime {
		if err = raiseBelow(c.Process.Pid); err != nil {
			_, _ = child.finish(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("a server at %v of lab %s: %w", p, p.Lab.Name, err)
	}
	return func() { _, _ = child.finish(context.Background()) }, nil
}

// child is a program of ours that has said that it is ready.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	say   *bytes.Buffer
}

// start starts a program and waits for its word "ready".
func start(ctx context.Context, c *exec.Cmd) (*child, error) {
	p := &child{cmd: c, say: &bytes.Buffer{}}
	c.Stderr = p.say
	stdin, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.stdin, p.out = stdin, bufio.NewReader(stdout)
	if err := c.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() {
		line, _ := p.out.ReadString('\n')
		ready <- strings.TrimSpace(line)
	}()
	select {
	case line := <-ready:
		if line == "ready" {
			return p, nil
		}
		_, err = p.finish(ctx)
		return nil, errors.Join(fmt.Errorf("it says %q instead of being ready", line), err)
	case <-time.After(20 * time.Second):
		err = errors.New("it was not ready within 20 s")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	stdin.Close()
	_, _ = c.Process.Kill(), c.Wait()
	return nil, err
}

// finish ends the program's input and returns what it still prints.
func (p *child) finish(ctx context.Context) (string, error) {
	p.stdin.Close()
	out, _ := io.ReadAll(p.out)
	if err := p.cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if text := strings.TrimSpace(p.say.String()); text != "" {
			err = errors.New(text)
		}
		return "", err
	}
	return string(out), nil
}
