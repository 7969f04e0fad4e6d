// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestDumpRepeatsWhatWasInterrupted(t *testing.T) {
	calls := 0
	got, err := Dump(func() ([]int, error) {
		if calls++; calls < 3 {
			return []int{1}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	})
	if err != nil || len(got) != 2 || calls != 3 {
		t.Errorf("%v %v after %d calls", got, err, calls)
	}
	calls = 0
	if _, err := Dump(func() ([]int, error) { calls++; return nil, netlink.ErrDumpInterrupted }); !errors.Is(err, netlink.ErrDumpInterrupted) || calls != dumpTries {
		t.Errorf("%v after %d calls", err, calls)
	}
	calls = 0
	other := errors.New("other")
	if _, err := Dump(func() ([]int, error) { calls++; return nil, other }); !errors.Is(err, other) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}
