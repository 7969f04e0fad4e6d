// SPDX-License-Identifier: Apache-2.0

// Package remembered has what an agent remembers over restarts, in files of its state folder, of
// the cluster and of its configuration: since when Nodes claim their addresses (Claims), and the
// configured values that were valid last (LastGood).
package remembered

import (
	"log/slog"
	"maps"
	"path/filepath"
	"sync"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// Claims remembers over restarts since when Nodes have their addresses: what a node claims
// while no agent runs here came later, too.
type Claims struct {
	file *statefile.File[map[string]watch.NodeClaims]

	mu    sync.Mutex
	known map[string]watch.NodeClaims // by the name of the Node
}

// NewClaims returns what the file has, or nothing.
func NewClaims(path string, log *slog.Logger) *Claims {
	c := &Claims{file: statefile.New[map[string]watch.NodeClaims](path, log)}
	if c.known = c.file.Load(); c.known == nil {
		c.known = map[string]watch.NodeClaims{}
	}
	return c
}

// All returns what is known, by the name of the Node.
func (c *Claims) All() map[string]watch.NodeClaims {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.known)
}

// Note keeps what changed of nodes; nil = gone. full = they are all that there are.
func (c *Claims) Note(nodes map[string]*model.Node, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := false
	for name, n := range nodes {
		was, had := c.known[name]
		if n == nil {
			changed = changed || had
			delete(c.known, name)
			continue
		}
		if now := watch.ClaimsOf(n); !had || now.UID != was.UID || !maps.Equal(now.Addrs, was.Addrs) {
			c.known[name], changed = now, true
		}
	}
	if full {
		before := len(c.known)
		maps.DeleteFunc(c.known, func(name string, _ watch.NodeClaims) bool { return nodes[name] == nil })
		changed = changed || len(c.known) != before
	}
	if changed {
		_ = c.file.Save(c.known) // reported there, and written with the next change
	}
}

// LastGood keeps the configured values that were valid last, for a start with one that is not.
type LastGood struct {
	file    *statefile.File[map[string]string]
	written map[string]string
}

// OpenLastGood returns the file of a state folder.
func OpenLastGood(dir string, log *slog.Logger) *LastGood {
	return &LastGood{file: statefile.New[map[string]string](filepath.Join(dir, "configuration.json"), log)}
}

// Load returns the values that were saved last; none = nil.
func (f *LastGood) Load() map[string]string { return f.file.Load() }

// Note saves the values when they are others than before.
func (f *LastGood) Note(values map[string]string) {
	if f.written != nil && maps.Equal(f.written, values) {
		return
	}
	if f.file.Save(values) == nil {
		f.written = maps.Clone(values)
		if f.written == nil {
			f.written = map[string]string{}
		}
	}
}
