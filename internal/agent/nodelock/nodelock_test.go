// SPDX-License-Identifier: Apache-2.0

package nodelock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/localsock"
)

// worker is an agent as far as the lock goes.
type worker struct {
	*Lock
	ended chan error // what run returned
}

// openWorker opens a lock; held says that it has the lock from a process before.
func openWorker(t *testing.T, dir string, held bool) *worker {
	t.Helper()
	of, got, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil || got != held {
		t.Fatalf("opening: held %v, error %v", got, err)
	}
	t.Cleanup(of.Close)
	return &worker{Lock: of, ended: make(chan error, 1)}
}

// work listens at the sockets as an agent does, and lets go when it is asked.
func (w *worker) work(t *testing.T) {
	t.Helper()
	path := filepath.Join(w.dir, filepath.Base(wire.DefaultSocket))
	cni, err := localsock.Listen(path)
	if err == nil {
		err = errors.Join(w.Listen(), w.NoteSocket(path))
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		err := w.AwaitHandOver(t.Context())
		cni.Close()
		w.Close()
		w.ended <- err
	}()
}

// end waits for the end of its work.
func (w *worker) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-w.ended:
		return err
	case <-time.After(await.Patience):
		t.Fatal("the agent goes on working")
		return nil
	}
}

// takes begins to wait for the lock.
func (w *worker) takes(ctx context.Context, ask bool, prepare func(context.Context)) <-chan error {
	got := make(chan error, 1)
	go func() { got <- w.Acquire(ctx, ask, prepare) }()
	return got
}

func nothing(context.Context) {}

// TestLockIsHandedOver: a new agent prepares while the one before works, gets its place by asking,
// and the one before gets it back when the new one ends.
func TestLockIsHandedOver(t *testing.T) {
	dir := t.TempDir()
	first := openWorker(t, dir, false)
	if err := first.Acquire(t.Context(), true, func(context.Context) { t.Error("nobody has the lock, but it was waited for") }); err != nil {
		t.Fatal(err)
	}
	first.work(t)
	second := openWorker(t, dir, false)
	prepared := false
	err := second.Acquire(t.Context(), true, func(context.Context) {
		prepared = true
		select {
		case err := <-first.ended:
			t.Errorf("the first agent ended before it was asked: %v", err)
		default:
		}
	})
	if err != nil || !prepared {
		t.Fatalf("prepared: %v, error %v", prepared, err)
	}
	if err := first.end(t); !errors.Is(err, ErrHandOver) {
		t.Errorf("the first agent ended with %v", err)
	}
	second.work(t)
	idle := openWorker(t, dir, false)
	got := idle.takes(t.Context(), false, nothing)
	select {
	case err := <-second.ended:
		t.Fatalf("one that only waits was given the place: %v", err)
	case err := <-got:
		t.Fatalf("two agents have the lock: %v", err)
	case <-time.After(2 * idleEvery): // the mistake would be seen in one
	}
	second.socket.Close() // it ends, for whatever reason
	second.end(t)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestLockIsKeptAcrossExec: a process that starts again in its own place keeps the lock; nobody
// else gets it in between.
func TestLockIsKeptAcrossExec(t *testing.T) {
	dir := t.TempDir()
	first := openWorker(t, dir, false)
	if err := first.Acquire(t.Context(), true, nothing); err != nil {
		t.Fatal(err)
	}
	env := first.RestartEnviron(false)
	flags, err := unix.FcntlInt(first.file.Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 || env[len(env)-1] != fmt.Sprintf("%s=%d", heldVariable, first.file.Fd()) {
		t.Fatalf("flags %#x, environment %q, error %v", flags, env[len(env)-1], err)
	}
	fd, err := unix.Dup(int(first.file.Fd())) // what execve(2) leaves
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	t.Setenv(heldVariable, fmt.Sprint(fd))
	again := openWorker(t, dir, true)
	if flags, err := unix.FcntlInt(again.file.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("programs that the agent starts get the lock: flags %#x, error %v", flags, err)
	}
	if os.Getenv(heldVariable) != "" {
		t.Errorf("%s is still there", heldVariable)
	}
	other := openWorker(t, dir, false)
	if got, err := other.tryLock(); got || err != nil {
		t.Errorf("another one got the lock: %v, error %v", got, err)
	}
	for _, v := range again.RestartEnviron(true) {
		if strings.HasPrefix(v, heldVariable+"=") {
			t.Errorf("one that waits keeps the lock: %s", v)
		}
	}
}

// TestLockWithAnotherFile: a descriptor that is not the lock's is not believed, and a lock file
// that was removed locks nobody out.
func TestLockWithAnotherFile(t *testing.T) {
	dir := t.TempDir()
	other, err := os.Create(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(other.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(heldVariable, fmt.Sprint(fd))
	first := openWorker(t, dir, false)
	if err := first.Acquire(t.Context(), true, nothing); err != nil {
		t.Fatal(err)
	}
	waiting := openWorker(t, dir, false)
	got := waiting.takes(t.Context(), false, nothing)
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
	first.Close()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	late := openWorker(t, dir, false)
	if got, err := late.tryLock(); got || err != nil {
		t.Errorf("two agents have the lock: %v, error %v", got, err)
	}
}

// TestLockBesideAnOlderVersion: an agent that knows no lock is waited for, and one that appears
// while this one works is given way to.
func TestLockBesideAnOlderVersion(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, filepath.Base(wire.DefaultSocket))
	old, err := localsock.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := old.Accept()
			if err != nil {
				return
			}
			conn.Close()
			asked <- struct{}{}
		}
	}()
	w := openWorker(t, dir, false)
	got := w.takes(t.Context(), true, nothing)
	<-asked
	<-asked
	select {
	case err := <-got:
		t.Fatalf("it works alongside the older one: %v", err)
	default:
	}
	old.Close()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	w.work(t)
	c, err := net.Dial("unix", filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := w.end(t); !errors.Is(err, ErrHandOver) {
		t.Fatal(err)
	}
	again := openWorker(t, dir, false)
	if err := again.Acquire(t.Context(), true, nothing); err != nil {
		t.Fatal(err)
	}
	again.work(t)
	if old, err = localsock.Listen(path); err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := again.end(t); !errors.Is(err, ErrHandOver) {
		t.Errorf("an agent goes on alongside one of an older version: %v", err)
	}
}

// TestLockEndsWithItsContext: an agent that is ended while it waits does not go on waiting.
func TestLockEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	first := openWorker(t, dir, false)
	if err := first.Acquire(t.Context(), true, nothing); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := openWorker(t, dir, false).takes(ctx, true, nothing)
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
