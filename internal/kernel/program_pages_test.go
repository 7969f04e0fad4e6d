// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/nettest"
)

// filePages returns how much of the memory of this process is of files, bytes.
func filePages(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	nettest.Must(t, err)
	_, after, _ := bytes.Cut(status, []byte("RssFile:"))
	var kib int
	_, err = fmt.Sscan(string(after), &kib)
	nettest.Must(t, err)
	return kib << 10
}

// code reads all code of this program, which brings it into its memory.
func code(t *testing.T) (sum [sha256.Size]byte, size int) {
	t.Helper()
	all, err := os.ReadFile("/proc/self/maps")
	nettest.Must(t, err)
	for line := range strings.Lines(string(all)) {
		var from, to int64
		if n, _ := fmt.Sscanf(line, "%x-%x r-xp", &from, &to); n != 2 || !strings.Contains(line, "/") || !strings.Contains(line, " r-xp ") {
			continue
		}
		mem, err := os.Open("/proc/self/mem")
		nettest.Must(t, err)
		defer mem.Close()
		out := make([]byte, to-from)
		_, err = mem.ReadAt(out, from)
		nettest.Must(t, err)
		return sha256.Sum256(out), len(out)
	}
	t.Fatalf("no code in %s", all)
	return sum, 0
}

func TestForgetProgramPages(t *testing.T) {
	was, size := code(t)
	before := filePages(t)
	if before < size {
		t.Fatalf("%d bytes of files in memory with %d of code", before, size)
	}
	nettest.Must(t, ForgetProgramPages())
	if after := filePages(t); after > before-size/2 {
		t.Errorf("%d bytes of files in memory, %d before", after, before)
	}
	if now, _ := code(t); now != was {
		t.Error("the code is not what it was")
	}
}
