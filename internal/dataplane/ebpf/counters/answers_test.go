// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// Every answer of enum answer has a word, and no word lacks an answer.
func TestAnswersHaveNames(t *testing.T) {
	src, err := os.ReadFile("../../../../bpf/abi_events.h")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^\tANSWER_(\w+) = (\d+),`).FindAllStringSubmatch(string(src), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			continue
		}
		found++
		if replyNames[uint32(n)] == "" {
			t.Errorf("ANSWER_%s has no name", m[1])
		}
	}
	if found != len(replyNames) {
		t.Errorf("%d answers in abi.h, %d names", found, len(replyNames))
	}
}
