// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
)

// library is a module that this program is linked with.
type library struct{ path, version string }

// linked are the libraries of this program. Programs that are built on Kubernetes' go.mod get at
// least these versions, so that client-go and what it needs is compiled once for Weir, the lab,
// Kubernetes and CoreDNS.
func linked() []library {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var out []library
	for _, m := range info.Deps {
		out = append(out, library{m.Path, m.Version})
	}
	return out
}

// module writes the go.mod that a group is built with into dir.
func (b *Builder) module(ctx context.Context, g Group, dir string) error {
	mod := []byte("module weir.local/lab/" + g.Name + "\n\ngo 1.26.0\n")
	switch {
	case g.OnKubernetes:
		upstream, err := b.upstream(ctx, kubernetesModule, KubernetesVersion, g, dir)
		if err != nil {
			return err
		}
		mod = onKubernetes(upstream, g, b.linked)
	case g.Replaced != nil:
		upstream, err := b.upstream(ctx, g.Module, g.Version, g, dir)
		if err != nil {
			return err
		}
		mod = onItself(upstream, g)
	}
	if err := writeModule(g, dir, "go.mod", string(mod)); err != nil {
		return err
	}
	if g.Source != "" {
		if err := writeModule(g, dir, "main.go", g.Source); err != nil {
			return err
		}
		// Its requirements are in go.mod, and building adds what else the package imports; go get
		// would fetch what upstream's main package needs.
		return nil
	}
	if g.Module != kubernetesModule {
		if _, err := b.goTool(ctx, dir, "get", g.Module+"@"+g.Version); err != nil {
			return fmt.Errorf("require %s %s: %w", g.Module, g.Version, err)
		}
		return nil
	}
	// Something has to import what is built, or go would drop ginkgo's requirements.
	var tools strings.Builder
	tools.WriteString("//go:build tools\n\npackage tools\n\nimport (\n")
	for _, p := range g.Programs {
		fmt.Fprintf(&tools, "\t_ %q\n", p.Package)
	}
	tools.WriteString(")\n")
	return writeModule(g, dir, "tools.go", tools.String())
}

// upstream returns the go.mod of a module, and writes its go.sum into dir.
func (b *Builder) upstream(ctx context.Context, module, version string, g Group, dir string) ([]byte, error) {
	src, err := b.download(ctx, module, version)
	if err != nil {
		return nil, err
	}
	mod, err := os.ReadFile(filepath.Join(src, "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("read the go.mod of %s: %w", module, err)
	}
	sum, err := os.ReadFile(filepath.Join(src, "go.sum"))
	if err != nil {
		return nil, fmt.Errorf("read the go.sum of %s: %w", module, err)
	}
	return mod, writeModule(g, dir, "go.sum", string(sum))
}

func writeModule(g Group, dir, name, content string) error {
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		return fmt.Errorf("write the module of %s: %w", g.Name, err)
	}
	return nil
}

var (
	moduleLine  = regexp.MustCompile(`(?m)^module .*$`)
	staging     = regexp.MustCompile(`(?m)^\s*(k8s\.io/[a-z0-9-]+) => \./staging/src/.*$`)
	unpublished = regexp.MustCompile(`(?m)^(\s*k8s\.io/[a-z0-9-]+) v0\.0\.0$`)
)

// onKubernetes turns Kubernetes' own go.mod, which points into its source tree, into one of the
// group's that requires the published modules of the same release. They are required by their
// version, and only v0.0.0, which Kubernetes' own module asks for, is replaced: a replaced module
// would be compiled separately. Kubernetes' libraries that this program is linked with are required
// in these versions, where those are newer.
func onKubernetes(mod []byte, g Group, linked []library) []byte {
	release := "v0." + strings.TrimPrefix(KubernetesVersion, "v1.")
	out := moduleLine.ReplaceAll(mod, []byte("module weir.local/lab/"+g.Name))
	out = staging.ReplaceAll(out, []byte("\t${1} v0.0.0 => ${1} "+release))
	out = unpublished.ReplaceAll(out, []byte("${1} "+release))
	for _, l := range linked {
		if regexp.MustCompile(`(?m)^\s*(require )?` + regexp.QuoteMeta(l.path) + ` v`).Match(mod) {
			out = fmt.Appendf(out, "\nrequire %s %s\n", l.path, l.version)
		}
	}
	return fmt.Appendf(out, "\nrequire %s %s\n", g.Module, g.Version)
}

// onItself turns a module's own go.mod into one of the group's that requires the module, so that
// its replacements, which count in a main module alone, are in force.
func onItself(mod []byte, g Group) []byte {
	out := moduleLine.ReplaceAll(mod, []byte("module weir.local/lab/"+g.Name))
	for path, version := range g.Replaced {
		folder := regexp.MustCompile(`(?m)^(\s*` + regexp.QuoteMeta(path) + ` =>) \./.*$`)
		out = folder.ReplaceAll(out, []byte("${1} "+path+" "+version))
	}
	return fmt.Appendf(out, "\nrequire %s %s\n", g.Module, g.Version)
}
