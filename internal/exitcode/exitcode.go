// SPDX-License-Identifier: Apache-2.0

// Package exitcode gives a command's error the exit code of its process, for scripts and CI that
// tell what was found from what failed.
package exitcode

// Error ends the program with Code. With Err nil nothing more is printed: everything was said.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }
