// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// grace is how long a program that has read a count may take to look its slot up, or a class its
// verdict.
const grace = time.Millisecond

// waitGrace waits for it. It sleeps in the kernel: timers of the runtime are looked at by who has
// nothing to do, and while the collector of garbage gives everybody something to do, a time.Sleep
// of a millisecond takes ten and more.
func waitGrace() {
	left := unix.NsecToTimespec(int64(grace))
	for errors.Is(unix.Nanosleep(&left, &left), unix.EINTR) { // a signal: what is left is slept next
		continue
	}
}
