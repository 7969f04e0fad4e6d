// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace runs f in a network namespace of its own; dir is empty.
func inNamespace(t testing.TB, f func(dir string) error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, done := t.TempDir(), make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = f(dir)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
