// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"fmt"
)

// mostErrors is how many errors Some keeps.
const mostErrors = 3

// Some are the errors of something that is done for many connections: the first few of them, and
// how many there were.
type Some struct {
	errs []error
	more int
}

// Add notes an error, if it is one.
func (s *Some) Add(err error) {
	switch {
	case err == nil:
	case len(s.errs) < mostErrors:
		s.errs = append(s.errs, err)
	default:
		s.more++
	}
}

// Err is what was noted, nil when nothing was.
func (s *Some) Err() error {
	if s.more == 0 {
		return errors.Join(s.errs...)
	}
	return errors.Join(append(s.errs[:len(s.errs):len(s.errs)], fmt.Errorf("and %d more", s.more))...)
}
