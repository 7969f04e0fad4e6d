// SPDX-License-Identifier: Apache-2.0

package nodeinit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-net/weir/lab/internal/nodespec"
)

const (
	restartDelay = time.Second
	pollInterval = 100 * time.Millisecond
	environment  = "HOME=/root"
)

// DaemonStatus is how a daemon of a node is.
type DaemonStatus struct {
	Name     string
	Running  bool
	PID      int // inside the node
	Restarts int
	// Last says how it ended, if it ever did.
	Last string
}

// supervisor runs daemons and, as the first process must, buries every process
// that nobody else waits for.
type supervisor struct {
	log     *slog.Logger
	daemons []nodespec.Daemon
	http    *http.Client

	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
	status  []DaemonStatus
}

func newSupervisor(log *slog.Logger, daemons []nodespec.Daemon) *supervisor {
	s := &supervisor{log: log, daemons: daemons, waiting: map[int]chan syscall.WaitStatus{}}
	for _, d := range daemons {
		s.status = append(s.status, DaemonStatus{Name: d.Name})
	}
	return s
}

func (s *supervisor) run(ctx context.Context) error {
	ca, err := os.ReadFile("/etc/kubernetes/pki/ca.crt")
	if err != nil {
		return fmt.Errorf("read the lab's authority: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	s.http = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
	}}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	if err := s.publish(); err != nil {
		return err
	}
	for i := range s.daemons {
		go s.keep(ctx, i)
	}
	// The ticker catches a child whose signal was merged with another's.
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-children:
		case <-tick.C:
		}
		s.reap()
	}
}

func (s *supervisor) reap() {
	for {
		var st syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &st, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		s.mu.Lock()
		if ch, ok := s.waiting[pid]; ok {
			delete(s.waiting, pid)
			ch <- st
		}
		s.mu.Unlock()
	}
}

// keep runs one daemon for as long as the node lives.
func (s *supervisor) keep(ctx context.Context, i int) {
	d := s.daemons[i]
	for ctx.Err() == nil {
		for _, what := range d.After {
			s.await(ctx, what)
		}
		end, err := s.start(i)
		if err != nil {
			s.update(i, func(st *DaemonStatus) { st.Last = err.Error() })
			s.log.Error("cannot start", "daemon", d.Name, "error", err)
		} else {
			st := <-end
			last := fmt.Sprintf("exit status %d", st.ExitStatus())
			if st.Signaled() {
				last = "signal " + st.Signal().String()
			}
			s.update(i, func(st *DaemonStatus) { st.Running, st.PID, st.Last = false, 0, last })
			s.log.Warn("daemon ended", "daemon", d.Name, "how", last)
		}
		select {
		case <-ctx.Done():
		case <-time.After(restartDelay):
		}
		s.update(i, func(st *DaemonStatus) { st.Restarts++ })
	}
}

func (s *supervisor) start(i int) (<-chan syscall.WaitStatus, error) {
	d := s.daemons[i]
	program, err := exec.LookPath(d.Args[0])
	if err != nil {
		return nil, fmt.Errorf("find the program of %s: %w", d.Name, err)
	}
	log, err := os.OpenFile(filepath.Join(nodespec.Logs, d.Name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", d.Name, err)
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer null.Close()

	// Held until the process is known, so that reap cannot bury it unnoticed.
	s.mu.Lock()
	p, err := os.StartProcess(program, d.Args, &os.ProcAttr{
		Dir: "/", Env: []string{"PATH=" + os.Getenv("PATH"), environment},
		Files: []*os.File{null, log, log}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		s.mu.Unlock()
		return nil, fmt.Errorf("start %s: %w", d.Name, err)
	}
	end := make(chan syscall.WaitStatus, 1)
	s.waiting[p.Pid] = end
	s.status[i].Running, s.status[i].PID = true, p.Pid
	s.mu.Unlock()
	s.log.Info("daemon started", "daemon", d.Name, "pid", p.Pid)
	_ = p.Release()
	if err := s.publish(); err != nil {
		s.log.Error("status is not written", "error", err)
	}
	return end, nil
}

// await blocks until what a daemon depends on answers.
func (s *supervisor) await(ctx context.Context, what string) {
	for ctx.Err() == nil {
		if s.answers(ctx, what) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}

func (s *supervisor) answers(ctx context.Context, what string) bool {
	if path, ok := strings.CutPrefix(what, "unix://"); ok {
		c, err := net.Dial("unix", path)
		if err != nil {
			return false
		}
		c.Close()
		return true
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, what, nil)
	if err != nil {
		return false
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (s *supervisor) update(i int, f func(*DaemonStatus)) {
	s.mu.Lock()
	f(&s.status[i])
	s.mu.Unlock()
	if err := s.publish(); err != nil {
		s.log.Error("status is not written", "error", err)
	}
}

// publish writes the status where the machine can read it.
func (s *supervisor) publish() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := json.Marshal(s.status)
	if err != nil {
		return fmt.Errorf("encode the node's status: %w", err)
	}
	part := nodespec.Status + ".part"
	if err := os.WriteFile(part, raw, 0o644); err != nil {
		return fmt.Errorf("write the node's status: %w", err)
	}
	if err := os.Rename(part, nodespec.Status); err != nil {
		return fmt.Errorf("write the node's status: %w", err)
	}
	return nil
}
