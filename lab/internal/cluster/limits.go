// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// limits of the machine that a few nodes use up, and what all labs together need.
// The kernel counts them by user, and all nodes are root's.
var limits = map[string]int{
	"fs/inotify/max_user_instances": 8192,
	"fs/inotify/max_user_watches":   524288,
}

// limitsDir remembers what the limits were. Its name is not one that a lab can have.
const limitsDir = StateDir + "/.limits"

// exclusively runs f while no other process does.
func exclusively(f func() error) error {
	fd, err := unix.Open(filepath.Dir(StateDir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", filepath.Dir(StateDir), err)
	}
	defer unix.Close(fd)
	for {
		err := unix.Flock(fd, unix.LOCK_EX)
		if err == nil {
			return f()
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for other labs: %w", err)
		}
	}
}

// raiseLimits raises what is too low, and remembers what it was.
func raiseLimits() error {
	for key, want := range limits {
		path := filepath.Join("/proc/sys", key)
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the machine's %s: %w", key, err)
		}
		now, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			return fmt.Errorf("read the machine's %s: %w", key, err)
		}
		if now >= want {
			continue
		}
		if err := os.MkdirAll(limitsDir, 0o700); err != nil {
			return fmt.Errorf("remember the machine's limits: %w", err)
		}
		if err := os.WriteFile(filepath.Join(limitsDir, strings.ReplaceAll(key, "/", ".")), raw, 0o600); err != nil {
			return fmt.Errorf("remember the machine's %s: %w", key, err)
		}
		if err := os.WriteFile(path, []byte(strconv.Itoa(want)), 0o644); err != nil {
			return fmt.Errorf("raise the machine's %s to %d, which a lab needs: %w", key, want, err)
		}
	}
	return nil
}

// restoreLimits puts the machine's limits back, once no lab needs them.
func restoreLimits() error {
	labs, err := List()
	if err != nil || len(labs) > 0 {
		return err
	}
	for key := range limits {
		file := filepath.Join(limitsDir, strings.ReplaceAll(key, "/", "."))
		raw, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("recall the machine's %s: %w", key, err)
		}
		if err := os.WriteFile(filepath.Join("/proc/sys", key), raw, 0o644); err != nil {
			return fmt.Errorf("put the machine's %s back: %w", key, err)
		}
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("forget the machine's %s: %w", key, err)
		}
	}
	_ = os.Remove(limitsDir)
	_ = os.Remove(StateDir)
	return nil
}
