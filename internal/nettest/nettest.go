// SPDX-License-Identifier: Apache-2.0

// Package nettest makes network namespaces for tests: one with a thread of its own (New), one for a
// function (Run), one for a test that is run once more in a process of its own (Isolated), and one
// for all tests of a package (Main). All need root, and so may other tests (NeedRoot).
package nettest

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace that lasts until its test ends.
type Namespace struct {
	FD int // its file descriptor, for links that are moved there

	name string
	jobs chan func() error
	done chan error
}

// New makes a namespace, which needs root: the test is skipped without. Its name is that of
// failures.
func New(t testing.TB, name string) *Namespace {
	t.Helper()
	NeedRoot(t, "making a network namespace")
	return begin(t, name, func() error { return unix.Unshare(unix.CLONE_NEWNET) })
}

// Open enters a namespace that somebody else made, by a path such as /run/netns/NAME.
func Open(t testing.TB, path string) *Namespace {
	t.Helper()
	NeedRoot(t, "entering a network namespace")
	return begin(t, path, func() error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Setns(fd, unix.CLONE_NEWNET)
	})
}

// begin starts the thread of a namespace, which enter puts there.
func begin(t testing.TB, name string, enter func() error) *Namespace {
	t.Helper()
	n := &Namespace{name: name, jobs: make(chan func() error), done: make(chan error)}
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its namespace
		for f := range n.jobs {
			n.done <- f()
		}
	}()
	n.Do(t, "a namespace", func() (err error) {
		if err := enter(); err != nil {
			return err
		}
		n.FD, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	t.Cleanup(func() {
		close(n.jobs)
		if err := unix.Close(n.FD); err != nil {
			t.Error(err)
		}
	})
	return n
}

// Do runs f in the namespace, by its thread. The test ends when f fails at what it is for.
func (n *Namespace) Do(t testing.TB, what string, f func() error) {
	t.Helper()
	n.jobs <- f
	if err := <-n.done; err != nil {
		t.Fatalf("%s: %s: %v", n.name, what, err)
	}
}
