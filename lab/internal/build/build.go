// SPDX-License-Identifier: Apache-2.0

// Package build makes the programs of a lab (Kubernetes, etcd, CoreDNS, CNI
// plugins, test images' programs) from their Go modules, once for each version.
package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/weir-net/weir/lab/internal/again"
	"github.com/weir-net/weir/lab/internal/progress"
)

// Versions that a lab runs.
const (
	KubernetesVersion = "v1.34.4"
	EtcdVersion       = "v3.6.16"
	CoreDNSVersion    = "v1.12.1"
	CNIVersion        = "v1.9.1"
)

// recipe is raised when the method of building changes, so that cached programs of
// the old method are not used.
const recipe = "1"

//go:embed files/coredns.go.txt
var corednsSource string

// Program is one binary.
type Program struct {
	Name    string
	Package string // "." is the group's own Source
	Test    bool   // built with `go test -c`
	// OnRequest programs are not needed to run a lab.
	OnRequest bool
}

// Group is a set of programs that come from one module.
type Group struct {
	Name    string
	Module  string
	Version string
	// Kubernetes says that Kubernetes' own go.mod is the base of the build.
	Kubernetes bool
	// Source is the main package of the build's own module, where upstream's has too much.
	Source   string
	Programs []Program
}

// Groups is everything that can be built.
func Groups() []Group {
	k := func(name string) Program { return Program{Name: name, Package: "k8s.io/kubernetes/cmd/" + name} }
	cni := func(kind, name string) Program {
		return Program{Name: name, Package: "github.com/containernetworking/plugins/plugins/" + kind + "/" + name}
	}
	return []Group{
		{Name: "kubernetes", Module: "k8s.io/kubernetes", Version: KubernetesVersion, Kubernetes: true, Programs: []Program{
			k("kube-apiserver"), k("kube-controller-manager"), k("kube-scheduler"), k("kubectl"), k("kube-proxy"), k("kubelet"),
			{Name: "agnhost", Package: "k8s.io/kubernetes/test/images/agnhost"},
			{Name: "regression-issue-74839", Package: "k8s.io/kubernetes/test/images/regression-issue-74839"},
			{Name: "e2e.test", Package: "k8s.io/kubernetes/test/e2e", Test: true, OnRequest: true},
			{Name: "ginkgo", Package: "github.com/onsi/ginkgo/v2/ginkgo", OnRequest: true},
		}},
		{Name: "etcd", Module: "go.etcd.io/etcd/server/v3", Version: EtcdVersion, Programs: []Program{
			{Name: "etcd", Package: "go.etcd.io/etcd/server/v3"},
		}},
		{Name: "coredns", Module: "github.com/coredns/coredns", Version: CoreDNSVersion, Source: corednsSource, Programs: []Program{
			{Name: "coredns", Package: "."},
		}},
		{Name: "cni", Module: "github.com/containernetworking/plugins", Version: CNIVersion, Programs: []Program{
			cni("main", "ptp"), cni("main", "loopback"), cni("ipam", "host-local"), cni("meta", "portmap"),
		}},
	}
}

// Set knows where the programs of a lab are.
type Set struct {
	// Dir holds one folder for each group.
	Dir  string
	dirs map[string]string // program → folder below Dir
}

// Rel is a program's path below Dir.
func (s *Set) Rel(program string) string { return filepath.Join(s.dirs[program], program) }

// Path is a program's path.
func (s *Set) Path(program string) string { return filepath.Join(s.Dir, s.Rel(program)) }

// Folders lists the folders below Dir that hold programs.
func (s *Set) Folders() []string {
	var out []string
	for _, g := range Groups() {
		out = append(out, s.dirs[g.Programs[0].Name])
	}
	return out
}

// Builder builds into a cache folder.
type Builder struct {
	Cache    string
	Progress *progress.Reporter

	gobin   string
	version string
}

// Build makes what is missing, and says where everything is. With onRequest it
// also makes the programs that only the end-to-end tests need.
func (b *Builder) Build(ctx context.Context, onRequest bool) (*Set, error) {
	if err := b.findGo(ctx); err != nil {
		return nil, err
	}
	set := &Set{Dir: filepath.Join(b.Cache, "bin"), dirs: map[string]string{}}
	for _, g := range Groups() {
		folder := g.folder(b.version)
		for _, p := range g.Programs {
			set.dirs[p.Name] = folder
		}
	}
	unlock, err := lock(ctx, filepath.Join(b.Cache, "build.lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, g := range Groups() {
		if err := b.group(ctx, g, set, onRequest); err != nil {
			return nil, err
		}
	}
	return set, nil
}

func (b *Builder) group(ctx context.Context, g Group, set *Set, onRequest bool) error {
	var missing []Program
	for _, p := range g.Programs {
		if p.OnRequest && !onRequest {
			continue
		}
		if _, err := os.Stat(set.Path(p.Name)); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	src := filepath.Join(b.Cache, "build", g.folder(b.version))
	out := filepath.Join(set.Dir, g.folder(b.version))
	for _, dir := range []string{src, out} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the build folder of %s: %w", g.Name, err)
		}
	}
	err := b.Progress.Step(fmt.Sprintf("module of %s %s", g.Name, g.Version), func() error {
		return again.Do(ctx, func() error { return b.module(ctx, g, src) })
	})
	if err != nil {
		return err
	}
	for i, p := range missing {
		what := fmt.Sprintf("build %s %s (%d of %d)", p.Name, g.Version, i+1, len(missing))
		if err := b.Progress.Step(what, func() error {
			return again.Do(ctx, func() error { return b.program(ctx, g, p, src, out) }) // it fetches modules
		}); err != nil {
			return err
		}
	}
	return nil
}

// program builds alongside its final place and renames, so that a build that was
// cut short is never taken for a finished one.
func (b *Builder) program(ctx context.Context, g Group, p Program, src, out string) error {
	part := filepath.Join(out, "."+p.Name+".part")
	defer os.Remove(part)
	args := []string{"build"}
	if p.Test {
		args = []string{"test", "-c"}
	}
	args = append(args, "-mod=mod", "-trimpath", "-ldflags", g.ldflags(), "-o", part, p.Package)
	if _, err := b.goTool(ctx, src, args...); err != nil {
		return fmt.Errorf("build %s %s: %w", p.Name, g.Version, err)
	}
	if err := os.Rename(part, filepath.Join(out, p.Name)); err != nil {
		return fmt.Errorf("put %s in place: %w", p.Name, err)
	}
	return nil
}

func (g Group) ldflags() string {
	flags := "-s -w"
	if !g.Kubernetes {
		return flags
	}
	major, minor, _ := strings.Cut(strings.TrimPrefix(g.Version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, kv := range []string{
			"gitVersion=" + g.Version, "gitMajor=" + major, "gitMinor=" + minor, "gitTreeState=clean",
			"gitCommit=" + strings.Repeat("0", 40), "buildDate=2026-01-01T00:00:00Z",
		} {
			flags += " -X " + pkg + "." + kv
		}
	}
	return flags
}

// folder names what the programs were built from and with, so that a newer
// version never overwrites one that a running lab uses.
func (g Group) folder(goVersion string) string {
	parts := []string{recipe, g.Module, g.Version, goVersion, g.ldflags()}
	if g.Source != "" {
		parts = append(parts, g.Source)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return fmt.Sprintf("%s-%s-%s", g.Name, g.Version, hex.EncodeToString(sum[:4]))
}

// KubernetesSource is the folder of Kubernetes' module, for the files that its
// test images need.
func (b *Builder) KubernetesSource(ctx context.Context) (string, error) {
	if err := b.findGo(ctx); err != nil {
		return "", err
	}
	var dir string
	err := again.Do(ctx, func() (err error) {
		dir, err = b.download(ctx, "k8s.io/kubernetes", KubernetesVersion)
		return err
	})
	return dir, err
}

func (b *Builder) download(ctx context.Context, module, version string) (string, error) {
	out, err := b.goTool(ctx, os.TempDir(), "mod", "download", "-json", module+"@"+version)
	if err != nil {
		return "", fmt.Errorf("fetch module %s %s: %w", module, version, err)
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(out, &m); err != nil || m.Dir == "" {
		return "", fmt.Errorf("fetch module %s %s: unexpected answer of go mod download: %s", module, version, out)
	}
	return m.Dir, nil
}

// findGo prefers the toolchain that hack/setup.sh put into the cache: it is there
// only where the machine had none that is new enough.
func (b *Builder) findGo(ctx context.Context) error {
	if b.gobin != "" {
		return nil
	}
	gobin := filepath.Join(b.Cache, "go", "bin", "go")
	if _, err := os.Stat(gobin); err != nil {
		if gobin, err = exec.LookPath("go"); err != nil {
			return fmt.Errorf("no Go toolchain on PATH: run hack/setup.sh: %w", err)
		}
	}
	b.gobin = gobin
	out, err := b.goTool(ctx, os.TempDir(), "env", "GOVERSION")
	if err != nil {
		b.gobin = ""
		return fmt.Errorf("ask %s for its version: %w", gobin, err)
	}
	b.version = strings.TrimSpace(string(out))
	return nil
}

// goTool runs the go command at low priority, with everything static, and returns
// its standard output.
func (b *Builder) goTool(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "10", b.gobin}, args...)...)
	cmd.Dir = dir
	// Compilers that collect their garbage less often take a sixth less CPU time, and some GiB.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOGC=400")
	// The whole process group is ended, because the compilers are its children.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("go %s: %w\n%s", args[0], err, tail(errs.String(), 20))
	}
	return out.Bytes(), nil
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimSpace(s), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
