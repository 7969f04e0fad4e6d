// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"maps"
	"path/filepath"
	"sync"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// nodeClaims remembers over restarts since when Nodes have their addresses: what a node claims
// while no agent runs here came later, too.
type nodeClaims struct {
	file *statefile.File[map[string]watch.NodeClaims]

	mu    sync.Mutex
	known map[string]watch.NodeClaims // by the name of the Node
}

func newNodeClaims(path string, log *slog.Logger) *nodeClaims {
	c := &nodeClaims{file: statefile.New[map[string]watch.NodeClaims](path, log)}
	if c.known = c.file.Load(); c.known == nil {
		c.known = map[string]watch.NodeClaims{}
	}
	return c
}

// all returns what is known.
func (c *nodeClaims) all() map[string]watch.NodeClaims {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.known)
}

// note keeps what changed of nodes; nil = gone. full = they are all that there are.
func (c *nodeClaims) note(nodes map[string]*model.Node, full bool) {
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

// lastGoodFile keeps the configured values that were valid last, for a start with one that is not.
type lastGoodFile struct {
	file    *statefile.File[map[string]string]
	written map[string]string
}

func openLastGood(dir string, log *slog.Logger) *lastGoodFile {
	return &lastGoodFile{file: statefile.New[map[string]string](filepath.Join(dir, "configuration.json"), log)}
}

// note saves the values when they are others than before.
func (f *lastGoodFile) note(values map[string]string) {
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
