// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	rows := []hostile.Row{{Attack: "a", Family: hostile.IPv4}, {Attack: "a", Family: hostile.IPv6}, {Attack: "b"}}
	if err := compare(rows, []string{"b", "a"}); err != nil {
		t.Error(err)
	}
	for name, mutants := range map[string][]string{"no mutant in hack/mutation: b": {"a"}, "no test recorded (there is none, or it was skipped): c": {"a", "b", "c"}} {
		if err := compare(rows, mutants); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v: %v", mutants, err)
		}
	}
}
