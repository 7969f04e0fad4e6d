// SPDX-License-Identifier: Apache-2.0

// Package nodelock decides which of two agents of a node works. During an upgrade two may run at
// once: the DaemonSet starts the new one first. Only one works, the one with the lock (flock(2)) of
// a file in the folder of what does not survive a reboot; the kernel releases it when its holder
// ends, however it ends. Who wants it connects to the holder's socket: the holder stops working,
// and starts again as one that waits for the lock until it is ended, so that it works again if the
// newer one ends before. A holder that starts again for another reason keeps the lock across
// execve(2). An agent of a version without the lock is recognized by its answering the CNI plugin,
// and is waited for.
package nodelock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/localsock"
)

const (
	fileName   = "agent.lock"
	socketName = "handover.sock"

	// In the environment of an agent that starts again: the descriptor of the lock that it has, and
	// that it waits for the lock.
	heldVariable = "WEIR_AGENT_LOCK"
	waitVariable = "WEIR_AGENT_WAITS"
)

// ErrHandOver says that another agent of this node asked for this one's place: the process is to be
// started again, to wait.
var ErrHandOver = errors.New("handed over to another agent of this node")

const (
	// retryEvery is between two tries to get the lock, and idleEvery of who does not ask for it.
	retryEvery = 5 * time.Millisecond
	idleEvery  = 200 * time.Millisecond
	// askEvery is between two times that a holder is asked: it may have started again.
	askEvery = 5 * time.Second
	// oldAgentWait bounds the waiting for an agent of a version that has no lock.
	oldAgentWait = time.Minute
)

// Lock is the right of an agent to work on its node.
type Lock struct {
	dir        string // Options.RunDir
	log        *slog.Logger
	file       *os.File
	socket     *net.UnixListener
	servedPath string      // of the CNI plugin's socket
	served     os.FileInfo // that
}

// Open opens the lock. It is held already where this process was started again by itself.
func Open(dir string, log *slog.Logger) (l *Lock, held bool, err error) {
	l = &Lock{dir: dir, log: log}
	if l.file = inherited(dir, log); l.file != nil {
		return l, true, nil
	}
	if l.file, err = openFile(dir); err != nil {
		return nil, false, err
	}
	return l, false, nil
}

// ErrHeld says that somebody else has the lock.
var ErrHeld = errors.New("another agent, or a clean-up, has the node's lock")

// TryAcquire takes the lock for something other than an agent, or returns ErrHeld at once.
func TryAcquire(dir string) (release func(), err error) {
	f, err := openFile(dir)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrHeld
		}
		return nil, fmt.Errorf("taking the node's lock: %w", err)
	}
	return func() { f.Close() }, nil
}

// OnlyWaits reports, once, whether this process was started again to wait until the other agent of
// the node ends, without asking for its place.
func OnlyWaits() bool {
	waits := os.Getenv(waitVariable) != ""
	os.Unsetenv(waitVariable)
	return waits
}

// openFile opens the lock's file, and makes it where there is none.
func openFile(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of the node's lock: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, fileName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the node's lock: %w", err)
	}
	return f, nil
}

// inherited is the file with the lock as this process has it since before it started again, nil
// where it has none.
func inherited(dir string, log *slog.Logger) *os.File {
	fd, err := strconv.Atoi(os.Getenv(heldVariable))
	if err != nil {
		return nil
	}
	os.Unsetenv(heldVariable)
	path := filepath.Join(dir, fileName)
	f := os.NewFile(uintptr(fd), path)
	if f != nil && sameFile(f, path) && flock(f) == nil {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, unix.FD_CLOEXEC); err == nil {
			return f
		}
	}
	log.Warn("the agent's lock is not the one that it had; asking for it again")
	return nil
}

// sameFile reports whether an open file is still the one at path.
func sameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// flock takes the lock of an open file unless somebody has it.
func flock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// tryLock takes the lock if nobody has it. Who removed the file has locked nobody out.
func (l *Lock) tryLock() (bool, error) {
	switch err := flock(l.file); {
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EINTR):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("taking the node's lock: %w", err)
	}
	if sameFile(l.file, filepath.Join(l.dir, fileName)) {
		return true, nil
	}
	l.file.Close()
	f, err := openFile(l.dir)
	if err != nil {
		return false, err
	}
	l.file = f
	return false, nil
}

// Acquire waits for the lock, and asks its holder for it unless this agent is one that only waits.
// prepare is called once before that, when there is a holder: what takes time is done while that
// one works.
func (l *Lock) Acquire(ctx context.Context, ask bool, prepare func(context.Context)) error {
	var asked time.Time
	var conn net.Conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	began, every := time.Now(), retryEvery
	if !ask {
		every = idleEvery
	}
	for first := true; ; first = false {
		got, err := l.tryLock()
		if err != nil {
			return err
		}
		if got {
			break
		}
		if first {
			l.log.Info("another agent of this node works; waiting for it", "asking", ask)
			prepare(ctx)
		}
		if ask && time.Since(asked) > askEvery {
			if asked.IsZero() {
				began = time.Now()
			}
			asked = time.Now()
			if conn != nil {
				conn.Close()
			}
			if conn, err = net.DialTimeout("unix", filepath.Join(l.dir, socketName), time.Second); err != nil {
				conn = nil
				l.log.Debug("asking for the place of the other agent", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
	if !asked.IsZero() {
		l.log.Info("the other agent of this node has handed over", "took", time.Since(began).Round(time.Millisecond))
	}
	return l.awaitOlderAgent(ctx)
}

// awaitOlderAgent waits for the end of an agent that has no lock.
func (l *Lock) awaitOlderAgent(ctx context.Context) error {
	path := filepath.Join(l.dir, filepath.Base(wire.DefaultSocket))
	for began, reported := time.Now(), false; ; reported = true {
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err != nil {
			return nil // nobody listens
		}
		conn.Close()
		if time.Since(began) > oldAgentWait {
			l.log.Warn("an agent of an older version still runs on this node; both work until it is ended")
			return nil
		}
		if !reported {
			l.log.Info("an agent of an older version runs on this node; waiting for its end")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// Listen lets others ask for the place of this agent.
func (l *Lock) Listen() (err error) {
	l.socket, err = localsock.Listen(filepath.Join(l.dir, socketName))
	return err
}

// NoteSocket notes that this agent has made the CNI plugin's socket, at path: who takes that works
// in its place.
func (l *Lock) NoteSocket(path string) (err error) {
	l.servedPath = path
	if l.served, err = os.Lstat(path); err != nil {
		return fmt.Errorf("looking at the CNI plugin's socket: %w", err)
	}
	return nil
}

// AwaitHandOver returns ErrHandOver when another agent asks for the place of this one, or has taken
// the CNI plugin's socket.
func (l *Lock) AwaitHandOver(ctx context.Context) error {
	defer l.socket.Close()
	asked := make(chan error, 1)
	go func() {
		for {
			conn, err := l.socket.AcceptUnix()
			if err != nil {
				asked <- fmt.Errorf("accepting another agent's call: %w", err)
				return
			}
			err = localsock.FromRoot(conn)
			conn.Close()
			if err == nil {
				asked <- ErrHandOver
				return
			}
			l.log.Warn("refused to hand over", "reason", err)
		}
	}()
	tick := time.NewTicker(idleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-asked:
			if ctx.Err() != nil {
				return nil
			}
			l.log.Info("another agent of this node takes over")
			return err
		case <-tick.C:
		}
		if now, err := os.Lstat(l.servedPath); err == nil && !os.SameFile(l.served, now) {
			l.log.Warn("another agent of this node, of an older version, has taken over")
			return ErrHandOver
		}
	}
}

// RestartEnviron is the environment for a start of this process in its own place: with the lock, or
// waiting for it.
func (l *Lock) RestartEnviron(waits bool) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, heldVariable+"=") || strings.HasPrefix(v, waitVariable+"=")
	})
	if waits {
		return append(env, waitVariable+"=yes")
	}
	if _, err := unix.FcntlInt(l.file.Fd(), unix.F_SETFD, 0); err != nil {
		return env // it asks for the lock again
	}
	return append(env, fmt.Sprintf("%s=%d", heldVariable, l.file.Fd()))
}

// Close releases the lock.
func (l *Lock) Close() {
	if l.socket != nil {
		l.socket.Close()
	}
	l.file.Close()
}
