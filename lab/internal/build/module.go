// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// module writes the go.mod that a group is built with into dir.
func (b *Builder) module(ctx context.Context, g Group, dir string) error {
	if !g.Kubernetes {
		mod := "module weir.local/lab/" + g.Name + "\n\ngo 1.26.0\n"
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o644); err != nil {
			return fmt.Errorf("write the module of %s: %w", g.Name, err)
		}
		if _, err := b.goTool(ctx, dir, "get", g.Module+"@"+g.Version); err != nil {
			return fmt.Errorf("require %s %s: %w", g.Module, g.Version, err)
		}
		if g.Source != "" {
			if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(g.Source), 0o644); err != nil {
				return fmt.Errorf("write the program of %s: %w", g.Name, err)
			}
		}
		return nil
	}
	src, err := b.download(ctx, g.Module, g.Version)
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(src, "go.mod"))
	if err != nil {
		return fmt.Errorf("read Kubernetes' go.mod: %w", err)
	}
	sum, err := os.ReadFile(filepath.Join(src, "go.sum"))
	if err != nil {
		return fmt.Errorf("read Kubernetes' go.sum: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), publishedModule(mod, g.Version), 0o644); err != nil {
		return fmt.Errorf("write the module of %s: %w", g.Name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o644); err != nil {
		return fmt.Errorf("write the module of %s: %w", g.Name, err)
	}
	// Something has to import what is built, or go would drop ginkgo's requirements.
	var tools strings.Builder
	tools.WriteString("//go:build tools\n\npackage tools\n\nimport (\n")
	for _, p := range g.Programs {
		fmt.Fprintf(&tools, "\t_ %q\n", p.Package)
	}
	tools.WriteString(")\n")
	if err := os.WriteFile(filepath.Join(dir, "tools.go"), []byte(tools.String()), 0o644); err != nil {
		return fmt.Errorf("write the module of %s: %w", g.Name, err)
	}
	return nil
}

var (
	moduleLine = regexp.MustCompile(`(?m)^module .*$`)
	staging    = regexp.MustCompile(`=> \./staging/src/(k8s\.io/[a-z0-9-]+)`)
)

// publishedModule turns Kubernetes' own go.mod, which points into its source
// tree, into one that requires the published modules of the same release.
func publishedModule(mod []byte, version string) []byte {
	library := "v0." + strings.TrimPrefix(version, "v1.")
	mod = moduleLine.ReplaceAll(mod, []byte("module weir.local/lab/kubernetes"))
	mod = staging.ReplaceAll(mod, []byte("=> ${1} "+library))
	return append(mod, "\nrequire k8s.io/kubernetes "+version+"\n"...)
}
