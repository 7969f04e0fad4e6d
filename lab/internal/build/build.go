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
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/weir-net/weir/lab/internal/again"
	"github.com/weir-net/weir/lab/internal/progress"
)

// Versions that a lab runs.
const (
	KubernetesVersion = "v1.34.4"
	EtcdVersion       = "v3.6.16"
	CoreDNSVersion    = "v1.12.4"
	CNIVersion        = "v1.9.1"
)

// recipe is raised when the method of building changes, so that cached programs of
// the old method are not used.
const recipe = "2"

const kubernetesModule = "k8s.io/kubernetes"

//go:embed files/coredns.go.txt
var corednsSource string

// Program is one binary.
type Program struct {
	Name    string
	Package string // "." is the group's own Source
	Test    bool   // built with `go test -c`
	// OnRequest programs are not needed to run a lab.
	OnRequest bool
	// Other is the network plugin that it is a part of, for labs with that: calico, flannel.
	Other string
}

// Group is a set of programs that come from one module.
type Group struct {
	Name    string
	Module  string
	Version string
	// OnKubernetes says that Kubernetes' own go.mod is the base of the build.
	OnKubernetes bool
	// Replaced says that the module's own go.mod is the base of the build, with these modules in
	// place of folders that are not in its archive: path → version.
	Replaced map[string]string
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
	return append([]Group{
		{Name: "kubernetes", Module: kubernetesModule, Version: KubernetesVersion, OnKubernetes: true, Programs: []Program{
			k("kube-apiserver"), k("kube-controller-manager"), k("kube-scheduler"), k("kubectl"), k("kube-proxy"), k("kubelet"),
			{Name: "agnhost", Package: "k8s.io/kubernetes/test/images/agnhost"},
			{Name: "regression-issue-74839", Package: "k8s.io/kubernetes/test/images/regression-issue-74839"},
			{Name: "e2e.test", Package: "k8s.io/kubernetes/test/e2e", Test: true, OnRequest: true},
			{Name: "ginkgo", Package: "github.com/onsi/ginkgo/v2/ginkgo", OnRequest: true},
		}},
		{Name: "etcd", Module: "go.etcd.io/etcd/server/v3", Version: EtcdVersion, Programs: []Program{
			{Name: "etcd", Package: "go.etcd.io/etcd/server/v3"},
		}},
		// It is a client of Kubernetes, and shares what is compiled for that.
		{Name: "coredns", Module: "github.com/coredns/coredns", Version: CoreDNSVersion, OnKubernetes: true, Source: corednsSource, Programs: []Program{
			{Name: "coredns", Package: "."},
		}},
		{Name: "cni", Module: "github.com/containernetworking/plugins", Version: CNIVersion, Programs: []Program{
			cni("main", "ptp"), cni("main", "loopback"), cni("ipam", "host-local"), cni("meta", "portmap"),
			{Name: "bridge", Package: "github.com/containernetworking/plugins/plugins/main/bridge", Other: "flannel"},
		}},
		calico(),
	}, flannel()...)
}

// Set knows where the programs of a lab are.
type Set struct {
	// Dir holds one folder for each group.
	Dir  string
	dirs map[string]string // program → folder below Dir
}

// Open is the set in a folder whose programs are there already, by their folders below it.
func Open(dir string, folders map[string]string) *Set { return &Set{Dir: dir, dirs: folders} }

// Selected is the folder below Dir of each program that is selected.
func (s *Set) Selected(selected func(Program) bool) map[string]string {
	out := map[string]string{}
	for _, g := range Groups() {
		for _, p := range g.Programs {
			if selected(p) {
				out[p.Name] = s.dirs[p.Name]
			}
		}
	}
	return out
}

// Rel is a program's path below Dir.
func (s *Set) Rel(program string) string { return filepath.Join(s.dirs[program], program) }

// Path is a program's path.
func (s *Set) Path(program string) string { return filepath.Join(s.Dir, s.Rel(program)) }

// Folders lists the folders below Dir that hold programs of nodes; those of other network plugins
// are in images alone.
func (s *Set) Folders() []string {
	var out []string
	for _, g := range Groups() {
		if g.Programs[0].Other != "" {
			continue
		}
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
	linked  []library
}

// ForLab is what a lab needs to run.
func ForLab(p Program) bool { return !p.OnRequest && p.Other == "" }

// ForOther is what a lab with another network plugin needs to run.
func ForOther(plugin string) func(Program) bool {
	return func(p Program) bool { return !p.OnRequest && (p.Other == "" || p.Other == plugin) }
}

// ForTests is what a lab and the end-to-end tests need.
func ForTests(p Program) bool { return p.Other == "" }

// Named selects the programs of these names, which have to exist.
func Named(names []string) (func(Program) bool, error) {
	known := map[string]bool{}
	for _, g := range Groups() {
		for _, p := range g.Programs {
			known[p.Name] = true
		}
	}
	for _, name := range names {
		if !known[name] {
			return nil, fmt.Errorf("program %q: want some of %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	}
	return func(p Program) bool { return slices.Contains(names, p.Name) }, nil
}

// Build makes what is selected and missing, and says where everything is.
func (b *Builder) Build(ctx context.Context, selected func(Program) bool) (*Set, error) {
	if err := b.findGo(ctx); err != nil {
		return nil, err
	}
	b.linked = linked()
	set := &Set{Dir: filepath.Join(b.Cache, "bin"), dirs: map[string]string{}}
	for _, g := range Groups() {
		folder := g.folder(b.version, b.linked)
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
		if err := b.group(ctx, g, set, selected); err != nil {
			return nil, err
		}
	}
	return set, nil
}

func (b *Builder) group(ctx context.Context, g Group, set *Set, selected func(Program) bool) error {
	var programs, tests []Program
	for _, p := range g.Programs {
		if !selected(p) {
			continue
		}
		if _, err := os.Stat(set.Path(p.Name)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if p.Test {
			tests = append(tests, p)
		} else {
			programs = append(programs, p)
		}
	}
	if len(programs)+len(tests) == 0 {
		return nil
	}
	folder := g.folder(b.version, b.linked)
	src, out := filepath.Join(b.Cache, "build", folder), filepath.Join(set.Dir, folder)
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
	// One command for all programs: each one looks at a thousand packages before it compiles any.
	jobs := [][]Program{programs}
	for _, p := range tests {
		jobs = append(jobs, []Program{p})
	}
	for _, job := range jobs {
		if len(job) == 0 {
			continue
		}
		var names []string
		for _, p := range job {
			names = append(names, p.Name)
		}
		if err := b.Progress.Step(fmt.Sprintf("build %s %s", strings.Join(names, ", "), g.Version), func() error {
			return again.Do(ctx, func() error { return b.programs(ctx, g, job, src, out) }) // it fetches modules
		}); err != nil {
			return err
		}
	}
	return nil
}

// programs builds alongside the final place and renames, so that a build that was cut short is
// never taken for a finished one. Debug information is not made, because -s and -w drop it.
func (b *Builder) programs(ctx context.Context, g Group, programs []Program, src, out string) error {
	part, err := os.MkdirTemp(out, ".part-")
	if err != nil {
		return fmt.Errorf("make a folder for programs of %s: %w", g.Name, err)
	}
	defer os.RemoveAll(part)
	args := []string{"build"}
	if programs[0].Test {
		args = []string{"test", "-c"}
	}
	args = append(args, "-mod=mod", "-trimpath", "-gcflags", "all=-dwarf=false", "-ldflags", g.ldflags(), "-o")
	if len(programs) == 1 {
		args = append(args, filepath.Join(part, programs[0].Name))
	} else {
		args = append(args, part+string(filepath.Separator))
	}
	for _, p := range programs {
		args = append(args, p.Package)
	}
	if _, err := b.goTool(ctx, src, args...); err != nil {
		return fmt.Errorf("build %s %s: %w", g.Name, g.Version, err)
	}
	for _, p := range programs {
		if err := os.Rename(filepath.Join(part, p.Name), filepath.Join(out, p.Name)); err != nil {
			return fmt.Errorf("put %s in place: %w", p.Name, err)
		}
	}
	return nil
}

func (g Group) ldflags() string {
	flags := "-s -w"
	switch g.Module {
	case kubernetesModule:
	case calicoModule: // it writes its release into ClusterInformation
		return flags + " -X " + calicoModule + "/node/pkg/lifecycle/startup.VERSION=" + CalicoVersion
	default:
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
func (g Group) folder(goVersion string, linked []library) string {
	parts := []string{recipe, g.Module, g.Version, goVersion, g.ldflags()}
	if g.OnKubernetes {
		parts = append(parts, KubernetesVersion, fmt.Sprint(linked))
	}
	if g.Source != "" {
		parts = append(parts, g.Source)
	}
	for _, path := range slices.Sorted(maps.Keys(g.Replaced)) {
		parts = append(parts, path, g.Replaced[path])
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
		dir, err = b.download(ctx, kubernetesModule, KubernetesVersion)
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
