// SPDX-License-Identifier: Apache-2.0

// Package results follows what container runtimes keep of the results of CNI plugins (libcni's
// cache): which pod got which addresses, as soon as its ADD has ended. Where another CNI plugin
// gives pods their addresses (CNI chaining) a node so knows its own pods' before the API server
// does. A runtime that keeps nothing there is no error: nothing is known early.
package results

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weir-net/weir/internal/model"
)

// Dir is where libcni keeps results, unless a runtime says otherwise.
const Dir = "/var/lib/cni/results"

const (
	// lookAgain is after how long a folder is looked for that is not there.
	lookAgain = 10 * time.Second
	// largest is the largest file that is read: those of pods have some 2 KB.
	largest = 1 << 20
)

// Record is what one ADD gave to a pod.
type Record struct {
	Pod   model.Name
	UID   string // empty where the runtime does not say it
	Addrs []netip.Addr
	When  time.Time // that it was written
}

// Watcher follows a folder of results. Its methods may be called by several goroutines.
type Watcher struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	records map[string]Record // by file
}

// New returns a Watcher of a folder, which may be missing.
func New(dir string, log *slog.Logger) *Watcher {
	w := &Watcher{dir: dir, log: log, records: map[string]Record{}}
	w.readAll()
	return w
}

// Owners returns of each address the record that was written last.
func (w *Watcher) Owners() map[netip.Addr]Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make(map[netip.Addr]Record, len(w.records))
	for _, r := range w.records {
		for _, a := range r.Addrs {
			if have, is := out[a]; !is || r.When.After(have.When) {
				out[a] = r
			}
		}
	}
	return out
}

// AddrsOf returns the addresses that a pod of that UID got.
func (w *Watcher) AddrsOf(pod model.Name, uid string) (addrs []netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		if r.Pod == pod && r.UID == uid {
			addrs = append(addrs, r.Addrs...)
		}
	}
	return addrs
}

// Run follows what changes until ctx ends, and calls changed after each change.
func (w *Watcher) Run(ctx context.Context, changed func()) error {
	for {
		err := w.follow(ctx, changed)
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			w.log.Warn("results of CNI plugins are not followed; pods have a network once the API server has their addresses", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAgain):
		}
	}
}

// follow returns when something is wrong with the folder.
func (w *Watcher) follow(ctx context.Context, changed func()) error {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer n.Close()
	if err := n.Add(w.dir); err != nil {
		return err
	}
	w.readAll()
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-n.Errors: // notices were lost, or the folder went
			return fmt.Errorf("following %s: %w", w.dir, err)
		case e, ok := <-n.Events:
			switch {
			case !ok || e.Name == w.dir:
				return fmt.Errorf("%s: %w", w.dir, fs.ErrNotExist)
			case w.note(filepath.Base(e.Name)):
				changed()
			}
		}
	}
}

func (w *Watcher) readAll() {
	files, err := os.ReadDir(w.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.log.Warn("results of CNI plugins cannot be read", "error", err)
	}
	w.mu.Lock()
	clear(w.records)
	w.mu.Unlock()
	for _, f := range files {
		w.note(f.Name())
	}
}

// note reads a file, and reports whether a record came or went.
func (w *Watcher) note(file string) bool {
	r, err := read(filepath.Join(w.dir, file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.log.Debug("a result of a CNI plugin cannot be read yet", "file", file, "error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, was := w.records[file]
	delete(w.records, file)
	is := err == nil && len(r.Addrs) > 0
	if is {
		w.records[file] = r
	}
	return was || is
}

// cached is the part that is wanted of a file of libcni.
type cached struct {
	Kind    string      `json:"kind"`
	CNIArgs [][2]string `json:"cniArgs"`
	Result  struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	} `json:"result"`
}

// read returns what a file says. A result without a pod, or without an address, is an empty record.
func read(path string) (r Record, err error) {
	f, err := os.Open(path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	at, err := f.Stat()
	if err != nil {
		return r, err
	}
	if !at.Mode().IsRegular() {
		return r, fmt.Errorf("%s is no regular file", path)
	}
	raw, err := io.ReadAll(io.LimitReader(f, largest))
	if err != nil {
		return r, err
	}
	return decode(raw, at.ModTime())
}

func decode(raw []byte, when time.Time) (r Record, err error) {
	var c cached
	if err := json.Unmarshal(raw, &c); err != nil {
		return r, err
	}
	if c.Kind != "cniCacheV1" {
		return r, fmt.Errorf("kind %q is not known", c.Kind)
	}
	r.When = when
	for _, arg := range c.CNIArgs {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			r.Pod.Namespace = arg[1]
		case "K8S_POD_NAME":
			r.Pod.Name = arg[1]
		case "K8S_POD_UID":
			r.UID = arg[1]
		}
	}
	if r.Pod.Name == "" || r.Pod.Namespace == "" {
		return Record{}, nil
	}
	for _, ip := range c.Result.IPs {
		if a := ip.Address.Addr(); a.IsValid() && !a.IsLoopback() && !a.IsUnspecified() {
			r.Addrs = append(r.Addrs, ip.Address.Addr().Unmap())
		}
	}
	return r, nil
}
