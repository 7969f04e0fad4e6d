// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// Options say where the program works: in the network namespace of the process.
type Options struct {
	Log              *slog.Logger
	RunDir, StateDir string // of the agent, and a folder that survives a reboot
}

const (
	// lookEvery is between two looks at the Spec.
	lookEvery = 200 * time.Millisecond
	// pause is before the next start of a process that ended at once.
	pause = 100 * time.Millisecond
)

// Supervise runs the program that has the devices, and starts it again as soon as it ends. A
// kubelet would wait before it does, the longer the more often. kill -9 of this process ends the
// other one too; then the kubelet starts both.
func Supervise(ctx context.Context, log *slog.Logger, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, self, args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
		cmd.WaitDelay = 5 * time.Second
		began := time.Now()
		err := cmd.Run()
		if ctx.Err() != nil {
			return nil
		}
		log.Error("the process with the devices ended; starting it again", "error", err)
		if time.Since(began) < pause {
			time.Sleep(pause)
		}
	}
	return nil
}

// Run has the devices that the Spec says until ctx ends. They stay then, without a process: who
// replaces this one goes on with them.
func Run(ctx context.Context, o Options) error {
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return fmt.Errorf("making the folder of what devices were given: %w", err)
	}
	devices := map[string]*running{}
	defer func() {
		for _, r := range devices {
			r.close(false)
		}
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var told string
	for {
		text := ""
		if err := reconcile(o, devices); err != nil {
			text = err.Error()
			if text != told {
				o.Log.Error("some devices of WireGuard are not there; trying again", "error", err)
			}
		}
		told = text
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// reconcile makes the devices equal to the Spec.
func reconcile(o Options, devices map[string]*running) error {
	s, err := ReadSpec(o.RunDir)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	var errs []error
	for _, d := range s.Devices {
		wanted[d.Name] = d.MTU > 0
		r := devices[d.Name]
		if r != nil {
			select {
			case <-r.dev.Wait(): // somebody deleted it
				r.close(false)
				delete(devices, d.Name)
			default:
				continue
			}
		}
		if !wanted[d.Name] {
			continue
		}
		if r, err = open(d, o.StateDir, o.Log); err != nil {
			errs = append(errs, err)
			continue
		}
		devices[d.Name] = r
	}
	for name, r := range devices {
		if !wanted[name] {
			r.close(true)
			delete(devices, name)
		}
	}
	return errors.Join(errs...)
}
