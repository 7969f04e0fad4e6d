// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"os"
	"time"
)

// folder is what was found in a folder of pins, by when it was changed last: while that stays, what
// is in it is what was in it.
type folder struct{ seen time.Time }

// tick is longer than the clock of file systems takes to go on: of two changes within it the second
// may not be noticed.
const tick = time.Second

// changed returns when something came into a folder, or went, last; zero where nobody knows.
func changed(dir string) time.Time {
	st, err := os.Stat(dir)
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// same reports whether the folder is as it was found.
func (f *folder) same(changed time.Time) bool { return !changed.IsZero() && changed.Equal(f.seen) }

// found notes that the folder was looked at and is as it should be, which was changed last before
// that. What was changed just now is looked at again.
func (f *folder) found(changed time.Time) {
	f.seen = time.Time{}
	if time.Since(changed) > tick {
		f.seen = changed
	}
}
