// SPDX-License-Identifier: Apache-2.0

// Package images makes the container images of a lab without a container registry:
// from the programs that package build made, and from Debian's packages.
package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/weir-net/weir/lab/internal/build"
	"github.com/weir-net/weir/lab/internal/nodespec"
	"github.com/weir-net/weir/lab/internal/progress"
)

// recipe is raised when the method of making images changes.
const recipe = "3"

// WeirImage is the name of Weir's own image in a lab.
const WeirImage = "weir.local/weir:dev"

// BenchImage is the name of the image that `weir bench` runs its pods from: weir-bench and nothing
// else. Weir's own image has that name too, because it has the program.
const BenchImage = "weir.local/weir-bench:dev"

// KubeProxyImage is the name of kube-proxy's image.
const KubeProxyImage = "registry.k8s.io/kube-proxy:" + build.KubernetesVersion

// CoreDNSImage is the name of CoreDNS' image.
const CoreDNSImage = "registry.k8s.io/coredns/coredns:" + build.CoreDNSVersion

var (
	//go:embed files/iperf.sh
	iperfScript string
	//go:embed files/pause.c
	pauseSource string
	//go:embed files/nginx.conf
	nginxConf string
	//go:embed files/default.conf
	nginxSite string
	//go:embed files/index.html
	nginxPage string
)

// Builder makes images in a cache folder.
type Builder struct {
	Cache    string
	Progress *progress.Reporter
	Programs *build.Set
	// KubernetesSource holds the files that upstream's test images carry.
	KubernetesSource string
}

// definition is an image with the layers that it is made of.
type definition struct {
	name   string
	image  image
	layers []layer
}

// layer is a part of an image; key names its contents before they are made.
type layer struct {
	name  string
	key   string
	write func(ctx context.Context, w io.Writer) error
}

// Build makes the images that are missing and returns the archives of all.
func (b *Builder) Build(ctx context.Context) ([]string, error) {
	unlock, err := build.Lock(ctx, b.Cache, "images")
	if err != nil {
		return nil, err
	}
	defer unlock()
	var out []string
	for _, d := range b.definitions() {
		path := filepath.Join(b.Cache, "images", d.name+"-"+d.key()+".tar")
		out = append(out, path)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		for _, l := range d.layers {
			file, err := b.layer(ctx, l)
			if err != nil {
				return nil, err
			}
			d.image.layers = append(d.image.layers, file)
		}
		if err := b.Progress.Step("image "+d.name, func() error { return d.image.write(path) }); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d definition) key() string {
	parts := []string{recipe, strings.Join(d.image.tags, " "), fmt.Sprint(d.image.entrypoint, d.image.cmd, d.image.stopSignal)}
	for _, l := range d.layers {
		parts = append(parts, l.name, l.key)
	}
	return key(parts...)
}

func key(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:6])
}

// layer makes a layer unless the cache has it.
func (b *Builder) layer(ctx context.Context, l layer) (string, error) {
	path := filepath.Join(b.Cache, "layers", l.name+"-"+key(recipe, l.key)+".tar")
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	return path, b.Progress.Step("layer "+l.name, func() error { return writeFile(ctx, path, l.write) })
}

func writeFile(ctx context.Context, path string, write func(context.Context, io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the layer folder: %w", err)
	}
	part := path + ".part"
	f, err := os.Create(part)
	if err != nil {
		return fmt.Errorf("make a layer: %w", err)
	}
	defer os.Remove(part)
	defer f.Close()
	if err := write(ctx, f); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write layer %s: %w", path, err)
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("put a layer in place: %w", err)
	}
	return nil
}

// files is a layer whose contents are known without running anything.
func files(name, key string, entries ...entry) layer {
	return layer{name: name, key: key, write: func(_ context.Context, w io.Writer) error { return writeLayer(w, entries) }}
}

func (b *Builder) definitions() []definition {
	agnhost, boom, dns := b.Programs.Rel("agnhost"), b.Programs.Rel("regression-issue-74839"), b.Programs.Rel("coredns")
	const e2e = "registry.k8s.io/e2e-test-images/"
	debian := b.debian()
	coredns := files("coredns", dns, program("coredns", b.Programs.Path("coredns")))
	kubeproxy := files("kube-proxy", b.Programs.Rel("kube-proxy"), program("usr/local/bin/kube-proxy", b.Programs.Path("kube-proxy")))
	return []definition{
		{name: "pause", layers: []layer{pause()}, image: image{
			tags: []string{nodespec.PauseImage, "registry.k8s.io/pause:3.10"}, entrypoint: []string{"/pause"}}},
		{name: "coredns", layers: []layer{coredns}, image: image{
			tags: []string{CoreDNSImage}, entrypoint: []string{"/coredns"}}},
		// It runs iptables and nft, which that Debian has.
		{name: "kube-proxy", layers: []layer{debian, kubeproxy}, image: image{
			tags: []string{KubeProxyImage}, cmd: []string{"/usr/local/bin/kube-proxy"}}},
		{name: "busybox", layers: []layer{busybox()}, image: image{
			tags: []string{e2e + "busybox:1.37.0-1", e2e + "busybox:1.36.1-1", "docker.io/library/busybox:1.36", "docker.io/library/busybox:latest"},
			cmd:  []string{"sh"}}},
		{name: "agnhost", layers: []layer{debian, coredns, b.agnhost(debian, agnhost)}, image: image{
			tags: []string{e2e + "agnhost:2.56", e2e + "agnhost:2.57", e2e + "agnhost:2.43", e2e + "agnhost:2.40", e2e + "agnhost:2.28",
				e2e + "jessie-dnsutils:1.7", "registry.k8s.io/build-image/distroless-iptables:v0.7.14"},
			entrypoint: []string{"/agnhost"}, cmd: []string{"pause"}}},
		{name: "nginx", layers: []layer{debian, nginx()}, image: image{
			tags: []string{"docker.io/library/nginx:1.27", "docker.io/library/nginx:latest", e2e + "nginx:1.14-4", e2e + "nginx:1.15-4"},
			cmd:  []string{"nginx", "-g", "daemon off;"}, stopSignal: "SIGQUIT"}},
		{name: "regression-issue-74839", layers: []layer{files("regression-issue-74839", boom, program("regression-issue-74839", b.Programs.Path("regression-issue-74839")))}, image: image{
			tags: []string{e2e + "regression-issue-74839:1.2"}, entrypoint: []string{"/regression-issue-74839"}}},
	}
}

func pause() layer {
	return layer{name: "pause", key: key(pauseSource), write: func(ctx context.Context, w io.Writer) error {
		dir, err := os.MkdirTemp("", "weir-lab-pause-")
		if err != nil {
			return fmt.Errorf("make a folder for the pause program: %w", err)
		}
		defer os.RemoveAll(dir)
		bin := filepath.Join(dir, "pause")
		cmd := exec.CommandContext(ctx, "gcc", "-Os", "-static", "-s", "-x", "c", "-o", bin, "-")
		cmd.Stdin = strings.NewReader(pauseSource)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("compile the pause program: %w\n%s", err, out)
		}
		return writeLayer(w, []entry{program("pause", bin)})
	}}
}

func busybox() layer {
	return layer{name: "busybox", key: "1", write: func(ctx context.Context, w io.Writer) error {
		path, err := exec.LookPath("busybox")
		if err != nil {
			return fmt.Errorf("find busybox (package busybox-static): %w", err)
		}
		list, err := exec.CommandContext(ctx, path, "--list").Output()
		if err != nil {
			return fmt.Errorf("ask busybox for its applets: %w", err)
		}
		entries := []entry{
			dir("tmp", 0o1777), dir("root", 0o700), dir("proc", 0o555), dir("sys", 0o555), dir("dev", 0o755), dir("usr/bin", 0o755), dir("sbin", 0o755),
			text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
			text("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
		}
		for _, applet := range strings.Fields(string(list)) {
			entries = append(entries, symlink("bin/"+applet, "busybox"))
		}
		return writeLayer(w, append(entries, program("bin/busybox", path)))
	}}
}

// nginx makes Debian's nginx behave as the image of that name does: it logs to the
// container's output and serves a page on port 80.
func nginx() layer {
	return files("nginx", key(nginxConf, nginxSite, nginxPage),
		text("etc/nginx/nginx.conf", nginxConf), text("etc/nginx/conf.d/default.conf", nginxSite),
		text("usr/share/nginx/html/index.html", nginxPage),
		symlink("var/log/nginx/access.log", "/dev/stdout"), symlink("var/log/nginx/error.log", "/dev/stderr"))
}

// agnhost adds upstream's test program, and what its image has alongside it, to
// Debian.
func (b *Builder) agnhost(debian layer, version string) layer {
	return layer{name: "agnhost", key: key(version, debian.key, iperfScript), write: func(ctx context.Context, w io.Writer) error {
		base, err := b.layer(ctx, debian)
		if err != nil {
			return err
		}
		passwd, err := readFile(base, "etc/passwd")
		if err != nil {
			return err
		}
		group, err := readFile(base, "etc/group")
		if err != nil {
			return err
		}
		porter := filepath.Join(b.KubernetesSource, "test/images/agnhost/porter")
		entries := []entry{
			program("agnhost", b.Programs.Path("agnhost")), symlink("agnhost-2", "agnhost"), dir("uploads", 0o755),
			fileFrom("localhost.crt", filepath.Join(porter, "localhost.crt")), fileFrom("localhost.key", filepath.Join(porter, "localhost.key")),
			text("etc/passwd", passwd+"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"),
			text("etc/group", group+"user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"),
			script("usr/local/bin/iperf", iperfScript),
		}
		// Not wget: busybox' static one crashes in name look-ups.
		for _, applet := range []string{"traceroute", "telnet", "vi", "ifconfig", "route", "netstat"} {
			entries = append(entries, symlink("usr/local/bin/"+applet, "/bin/busybox"))
		}
		return writeLayer(w, entries)
	}}
}

// weirPrograms lists Weir's programs in a folder.
func weirPrograms(dir string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "weir*"))
	if err != nil {
		return nil, fmt.Errorf("look for Weir's programs in %s: %w", dir, err)
	}
	var out []string
	for _, path := range found {
		st, err := os.Stat(path)
		if err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 && filepath.Base(path) != "weir-lab" {
			out = append(out, path)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s holds none of Weir's programs: build them first", dir)
	}
	return out, nil
}

// contentsOf names what Weir's programs in a folder are.
func contentsOf(dir string) (string, error) {
	programs, err := weirPrograms(dir)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, path := range programs {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("read Weir's program: %w", err)
		}
		fmt.Fprintf(h, "%s\x00", filepath.Base(path))
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", fmt.Errorf("read Weir's program %s: %w", path, err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Weir writes Weir's own image from the programs in a folder: they are at its root,
// and alongside them are nft with its libraries and a few empty folders.
func Weir(dir, out string) error {
	programs, err := weirPrograms(dir)
	if err != nil {
		return err
	}
	tables, err := nft()
	if err != nil {
		return err
	}
	return write(programs, tables, out, WeirImage, BenchImage)
}

// Bench writes the image of `weir bench` from the program in a folder: that program and nothing
// else that runs.
func Bench(dir, out string) error {
	path := filepath.Join(dir, benchProgram)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("the program of the benchmarks: %w", err)
	}
	return write([]string{path}, nil, out, BenchImage)
}

const benchProgram = "weir-bench"

// write writes an image of programs at its root, and what else they need.
func write(programs []string, more []entry, out string, tags ...string) error {
	var entries []entry
	for _, path := range programs {
		entries = append(entries, program(filepath.Base(path), path))
	}
	entries = append(entries, dirs("tmp", "run", "var/lib", "var/log", "etc", "proc", "sys", "dev")...)
	entries = append(entries, text("etc/passwd", "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"),
		text("etc/group", "root:x:0:\nnonroot:x:65532:\n"))
	entries = append(entries, more...)
	tmp, err := os.CreateTemp("", "weir-lab-layer-")
	if err != nil {
		return fmt.Errorf("make Weir's layer: %w", err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if err := writeLayer(tmp, entries); err != nil {
		return err
	}
	return image{tags: tags, layers: []string{tmp.Name()}, path: "/"}.write(out)
}

func dirs(paths ...string) []entry {
	var out []entry
	for _, p := range paths {
		mode := int64(0o755)
		if p == "tmp" {
			mode = 0o1777
		}
		out = append(out, dir(p, mode))
	}
	return out
}

// run starts a program that ends with this one, in mounts of its own so that
// nothing it mounts can stay behind.
func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		return fmt.Errorf("%s: %w\n%s", name, err, strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
	return nil
}
