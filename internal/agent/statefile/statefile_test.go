// SPDX-License-Identifier: Apache-2.0

package statefile

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/nettest"
)

func TestFullDiskIsSaidOnceAndLosesNothing(t *testing.T) {
	nettest.NeedRoot(t, "mounting a full disk")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	var log bytes.Buffer
	r := New[[]string](filepath.Join(dir, "state.json"), slog.New(slog.NewTextHandler(&log, nil)))
	if err := r.Save([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 64<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	for range 3 {
		err := r.Save([]string{strings.Repeat("b", 8<<10)})
		if err == nil || !strings.Contains(err.Error(), "the disk is full") {
			t.Errorf("error %v", err)
		}
	}
	if n := strings.Count(log.String(), "cannot be written"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
	if got := r.Load(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("after failed writes: %v", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".state*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
