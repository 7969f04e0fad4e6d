// SPDX-License-Identifier: Apache-2.0

// Package statefile keeps small files that the agent can do without but is better off with, in the
// folder that survives a reboot. A file is replaced in one step: a reader, or the next start after
// a crash or on a full disk, finds the old contents or the new. One that cannot be read is as if it
// were empty, and a disk that is full is reported once; the agent goes on either way.
package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Write puts data at path in one step: a reader, or the next start after a crash or on a full disk,
// finds the old contents or the new, never a part.
func Write(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of %s: %w", path, err)
	}
	temp, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-")
	if err != nil {
		return explainWrite(path, err)
	}
	_, err = temp.Write(data)
	err = errors.Join(err, temp.Chmod(mode), temp.Sync(), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		os.Remove(temp.Name())
		return explainWrite(path, err)
	}
	return nil
}

func explainWrite(path string, err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("writing %s: the disk is full; free space below %s: %w", path, filepath.Dir(path), err)
	}
	return fmt.Errorf("writing %s: %w", path, err)
}

// File is a JSON file with a value of type T.
type File[T any] struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	failed bool // the last write failed and was reported
}

// New is the file at a path. Nothing is read or written yet.
func New[T any](path string, log *slog.Logger) *File[T] { return &File[T]{path: path, log: log} }

// Load reads the file. One that is missing or cannot be read is as if it were empty; the latter is
// reported, and the next save replaces it.
func (r *File[T]) Load() T {
	var v T
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return v
	}
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		r.log.Error("a state file cannot be read; going on without what it holds, and writing it anew", "file", r.path, "error", err)
		var empty T
		return empty
	}
	return v
}

// Save writes the file. A failure is reported once, and returned each time.
func (r *File[T]) Save(v T) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		err = Write(r.path, append(data, '\n'), 0o600)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && !r.failed {
		r.log.Error("a state file cannot be written; going on without it", "file", r.path, "error", err)
	}
	if err == nil && r.failed {
		r.log.Info("a state file can be written again", "file", r.path)
	}
	r.failed = err != nil
	return err
}
