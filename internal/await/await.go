// SPDX-License-Identifier: Apache-2.0

// Package await is how tests wait for what another goroutine, another process or the kernel does.
package await

import "time"

// T is a test, or a program that has what tests have of one.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Patience is how long a test waits at least. What works takes as long as it takes; only a failure
// takes this long, so it is meant for the slowest machine that has other work as well. No test
// checks how fast a machine is.
const Patience = 2 * time.Minute

// That waits until check returns nil, and ends the test with its last error when it does not within
// Patience.
func That(t T, what string, check func() error) {
	t.Helper()
	Within(t, Patience, what, check)
}

// Within is That with a limit of its own, which counts where it is longer than Patience.
func Within(t T, limit time.Duration, what string, check func() error) {
	t.Helper()
	limit = max(limit, Patience)
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
