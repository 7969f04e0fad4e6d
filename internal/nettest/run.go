// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread of a network namespace of its own, which ends with it; dir is an empty
// folder. The test is skipped without root, and ends when f fails.
func Run(t testing.TB, f func(dir string) error) {
	t.Helper()
	NeedRoot(t, "making a network namespace")
	dir, done := t.TempDir(), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = f(dir)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Must ends the test when there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
