// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a program that was started, with a file for what it says.
type process struct {
	name, out string
	cmd       *exec.Cmd
}

func (s *site) start(name string, env []string, program string, args ...string) *process {
	p := &process{name: name, out: filepath.Join(s.dir, name+".log")}
	log, err := os.Create(p.out)
	s.must(err)
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.must(p.cmd.Start())
	s.Cleanup(p.kill)
	return p
}

// stop ends the process in order.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	_ = p.cmd.Wait()
}

func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

func (p *process) log() []byte {
	b, err := os.ReadFile(p.out)
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

func (p *process) said(text string) bool { return bytes.Contains(p.log(), []byte(text)) }

// tail is the end of what it said.
func (p *process) tail() string {
	b := p.log()
	return p.name + " says:\n" + string(b[max(0, len(b)-3000):])
}

// cpu is what the process has used, the programs that it ran included.
func (p *process) cpu() (time.Duration, error) {
	var ts unix.Timespec // clock_getcpuclockid(3)
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|2), &ts); err != nil {
		return 0, fmt.Errorf("read the CPU time of %s: %w\n%s", p.name, err, p.tail())
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var children int64
	for _, f := range strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))[13:15] { // cutime, cstime in ticks of 10 ms
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		children += n
	}
	return time.Duration(ts.Nano()) + time.Duration(children)*10*time.Millisecond, nil
}

// memory is resident memory, MiB: now, at most so far, and of now the part that is not of files.
func (p *process) memory() (now, peak, anon float64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, 0
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		for name, into := range map[string]*float64{"VmRSS:": &now, "VmHWM:": &peak, "RssAnon:": &anon} {
			var kib float64
			if n, _ := fmt.Sscanf(line, name+" %f", &kib); n == 1 {
				*into = kib / 1024
			}
		}
	}
	return now, peak, anon
}
