// SPDX-License-Identifier: Apache-2.0

// Package conflist writes the network configuration by which the container runtime finds Weir, and
// keeps it there. A node counts as ready for pods once it is there.
package conflist

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/weir-net/weir/internal/agent/statefile"
)

// File is that configuration.
type File struct {
	Dir string // where the runtime looks for it
}

const (
	// Name is the file's name.
	Name = "10-weir.conflist"
	// pluginName is the program in the runtime's folder of plugins.
	pluginName = "weir-cni"
)

// Families are those of which a pod gets an address without asking for one.
type Families struct{ IPv4, IPv6 bool }

// render returns the file's contents. Version 1.0.0 is what
// containerd 1.6 knows; newer runtimes take it too, and ask the plugin for what it supports.
func (File) render(socket string, f Families) []byte {
	conf := map[string]any{
		"cniVersion": "1.0.0",
		"name":       "weir",
		"plugins": []any{map[string]any{
			"type":   pluginName,
			"socket": socket,
			"ipam":   map[string]any{"type": pluginName, "assign_ipv4": f.IPv4, "assign_ipv6": f.IPv6},
		}},
	}
	out, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		panic(err) // of constants and a string
	}
	return append(out, '\n')
}

func (c File) path() string { return filepath.Join(c.Dir, Name) }

// ensure writes the file when it is not there as it should be.
func (c File) ensure(socket string, f Families) (bool, error) {
	want := c.render(socket, f)
	if have, err := os.ReadFile(c.path()); err == nil && bytes.Equal(have, want) {
		return false, nil
	}
	if err := statefile.Write(c.path(), want, 0o644); err != nil {
		return false, fmt.Errorf("writing the container runtime's network configuration: %w", err)
	}
	return true, nil
}

// Keep writes the file once ready says so, and again when somebody removes it or families says
// something else, until ctx ends; look is a hint that it may be. The file stays when the agent
// ends: pods that are asked for meanwhile are held back by the plugin.
func (c File) Keep(ctx context.Context, socket string, ready func() error, families func() Families, look <-chan struct{}, log *slog.Logger) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var wrote Families
	written, complained := false, time.Time{}
	for {
		hint := false
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-look:
			hint = true
		}
		if ready() != nil {
			continue
		}
		want := families()
		if hint && written && want == wrote {
			continue // a hint comes with every change of the cluster; the file is looked at by the clock
		}
		changed, err := c.ensure(socket, want)
		switch {
		case err != nil:
			if time.Since(complained) > 30*time.Second {
				complained = time.Now()
				log.Error("the node stays not ready", "error", err)
			}
			continue
		case changed:
			log.Info("wrote the network configuration for the container runtime", "file", c.path(), "IPv4", want.IPv4, "IPv6", want.IPv6, "again", written)
		}
		if wrote = want; !written {
			written = true
			tick.Reset(5 * time.Second)
		}
	}
}
