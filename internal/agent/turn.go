package agent

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

// Two agents of a node may run at once: during an upgrade the DaemonSet starts the new one first. Only one of them works, the one that has the
// lock (flock(2)) of a file in the folder of what does not survive a reboot; the kernel releases it when its holder ends, however it
// ends. Who wants it connects to the holder's socket: the holder stops working, and starts again as one that waits for the lock until it is
// ended, so that it works again if the newer one ends before. A holder that starts again for another reason keeps the lock across
// execve(2). An agent of a version without the lock is known by its answering the CNI plugin, and is waited for.

const (
	turnLock   = "agent.lock"
	turnSocket = "handover.sock"

	// In the environment of an agent that starts again: the descriptor of the lock that it has, and that it waits for the lock.
	heldVariable = "WEIR_AGENT_LOCK"
	idleVariable = "WEIR_AGENT_WAITS"
)

// ErrHandOver says that another agent of this node asked for this one's place: the process is to be started again, to wait.
var ErrHandOver = errors.New("handed over to another agent of this node")

const (
	// turnEvery is between two tries to get the lock, and idleEvery of who does not ask for it.
	turnEvery = 5 * time.Millisecond
	idleEvery = 200 * time.Millisecond
	// askEvery is between two times that a holder is asked: it may have started again.
	askEvery = 5 * time.Second
	// oldAgentWait bounds the waiting for an agent of a version that has no lock.
	oldAgentWait = time.Minute
	// windDown bounds how long an agent that was asked finishes what it does.
	windDown = 2 * time.Second
)

// turn is the right of an agent to work on its node.
type turn struct {
	dir    string // Options.RunDir
	log    *slog.Logger
	lock   *os.File
	socket *net.UnixListener
	path   string      // of the CNI plugin's socket
	ours   os.FileInfo // that
}

// openTurn opens the lock. It has it already where this process was started again by itself.
func openTurn(dir string, log *slog.Logger) (t *turn, held bool, err error) {
	t = &turn{dir: dir, log: log}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, false, fmt.Errorf("making the folder of the agent's lock: %w", err)
	}
	path := filepath.Join(dir, turnLock)
	if fd, err := strconv.Atoi(os.Getenv(heldVariable)); err == nil {
		os.Unsetenv(heldVariable)
		f := os.NewFile(uintptr(fd), path)
		if f != nil && sameFile(f, path) && lockFile(f) == nil {
			if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, unix.FD_CLOEXEC); err == nil {
				t.lock = f
				return t, true, nil
			}
		}
		log.Warn("the agent's lock is not the one that it had; asking for it again")
	}
	if t.lock, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, false, fmt.Errorf("opening the agent's lock: %w", err)
	}
	return t, false, nil
}

// sameFile reports whether an open file is still the one at path.
func sameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// try takes the lock if nobody has it. Who removed the file has locked nobody out.
func (t *turn) try() (bool, error) {
	switch err := lockFile(t.lock); {
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EINTR):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("taking the agent's lock: %w", err)
	}
	path := filepath.Join(t.dir, turnLock)
	if sameFile(t.lock, path) {
		return true, nil
	}
	t.lock.Close()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, fmt.Errorf("opening the agent's lock: %w", err)
	}
	t.lock = f
	return false, nil
}

// take waits for the lock, and asks its holder for it unless this agent is one that only waits. prepare is called once before that, when there is
// a holder: what takes time is done while that one works.
func (t *turn) take(ctx context.Context, ask bool, prepare func(context.Context)) error {
	var asked time.Time
	var conn net.Conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	began, every := time.Now(), turnEvery
	if !ask {
		every = idleEvery
	}
	for first := true; ; first = false {
		got, err := t.try()
		if err != nil {
			return err
		}
		if got {
			break
		}
		if first {
			t.log.Info("another agent of this node works; waiting for it", "asking", ask)
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
			if conn, err = net.DialTimeout("unix", filepath.Join(t.dir, turnSocket), time.Second); err != nil {
				conn = nil
				t.log.Debug("asking for the place of the other agent", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
	if !asked.IsZero() {
		t.log.Info("the other agent of this node has handed over", "took", time.Since(began).Round(time.Millisecond))
	}
	return t.awaitOld(ctx)
}

// awaitOld waits for the end of an agent that has no lock.
func (t *turn) awaitOld(ctx context.Context) error {
	path := filepath.Join(t.dir, filepath.Base(wire.DefaultSocket))
	for began, told := time.Now(), false; ; told = true {
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err != nil {
			return nil // nobody listens
		}
		conn.Close()
		if time.Since(began) > oldAgentWait {
			t.log.Warn("an agent of an older version still runs on this node; both work until it is ended")
			return nil
		}
		if !told {
			t.log.Info("an agent of an older version runs on this node; waiting for its end")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// listen lets others ask for the place of this agent.
func (t *turn) listen() (err error) {
	t.socket, err = localsock.Listen(filepath.Join(t.dir, turnSocket))
	return err
}

// serves notes that this agent has made the CNI plugin's socket, at path: who takes that works in its place.
func (t *turn) serves(path string) (err error) {
	t.path = path
	if t.ours, err = os.Lstat(path); err != nil {
		return fmt.Errorf("looking at the CNI plugin's socket: %w", err)
	}
	return nil
}

// run returns ErrHandOver when another agent asks for the place of this one, or has taken the CNI plugin's socket.
func (t *turn) run(ctx context.Context) error {
	defer t.socket.Close()
	asked := make(chan error, 1)
	go func() {
		for {
			conn, err := t.socket.AcceptUnix()
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
			t.log.Warn("refused to hand over", "reason", err)
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
			t.log.Info("another agent of this node takes over")
			return err
		case <-tick.C:
		}
		if now, err := os.Lstat(t.path); err == nil && !os.SameFile(t.ours, now) {
			t.log.Warn("another agent of this node, of an older version, has taken over")
			return ErrHandOver
		}
	}
}

// environAgain is the environment for a start of this process in its own place: with the lock, or waiting for it.
func (t *turn) environAgain(waits bool) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, heldVariable+"=") || strings.HasPrefix(v, idleVariable+"=")
	})
	if waits {
		return append(env, idleVariable+"=yes")
	}
	if _, err := unix.FcntlInt(t.lock.Fd(), unix.F_SETFD, 0); err != nil {
		return env // it asks for the lock again
	}
	return append(env, fmt.Sprintf("%s=%d", heldVariable, t.lock.Fd()))
}

// close releases the lock.
func (t *turn) close() {
	if t.socket != nil {
		t.socket.Close()
	}
	t.lock.Close()
}
