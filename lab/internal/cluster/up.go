// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weir-net/weir/lab/internal/build"
	"github.com/weir-net/weir/lab/internal/images"
	"github.com/weir-net/weir/lab/internal/network"
	"github.com/weir-net/weir/lab/internal/nodeinit"
	"github.com/weir-net/weir/lab/internal/nodespec"
	"github.com/weir-net/weir/lab/internal/plan"
	"github.com/weir-net/weir/lab/internal/progress"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
)

// Options of a lab that is started.
type Options struct {
	Name         string
	Workers      int
	Family       plan.Family
	Proxy        plan.Proxy
	Racks        bool   // every second worker is behind the router
	BGP          bool   // nodes are in two racks, between which routes to pods are learned by BGP
	Cache        string // folder of everything that is built once
	Weir         string // folder with Weir's programs
	Install      bool   // install Weir, with ProxyWeir
	InstallArgs  []string
	Kubeconfig   string // where else to write the administrator's kubeconfig
	FeatureGates string // of the API server and its controllers
	ReadOnlyRoot bool
	KeepFailed   bool          // leave a lab that did not come up for inspection
	Timeout      time.Duration // for each of the API server, the nodes and DNS to become ready
	// LaunchStage is the argument that makes this program run Launch.
	LaunchStage string
}

//go:embed coredns.yaml
var corednsYAML string

// Up starts a lab. If that fails or ctx ends, what was started is removed again.
func Up(ctx context.Context, o Options, p *progress.Reporter) error {
	l, err := (&State{Name: o.Name, Workers: o.Workers, Family: o.Family, Proxy: o.Proxy, Racks: o.Racks, BGP: o.BGP}).plan()
	if err != nil {
		return err
	}
	if err := check(o); err != nil {
		return err
	}
	set, seed, err := unpack(o)
	if errors.Is(err, fs.ErrNotExist) {
		set, seed, err = prepare(ctx, o, p)
	}
	if err != nil {
		return err
	}
	me, err := self()
	if err != nil {
		return err
	}
	s := &State{
		Name: o.Name, Workers: o.Workers, Family: o.Family, Proxy: o.Proxy, Racks: o.Racks, BGP: o.BGP, Created: time.Now().UTC(), Starter: me,
		Data: filepath.Join(o.Cache, "labs", o.Name), Programs: set.Dir, Folders: set.Folders(),
	}
	// Its tools, weir-bench for one, are of use with any proxy.
	if _, err := os.Stat(o.Weir); err == nil || o.Proxy.Weir() {
		s.Weir = o.Weir
	}
	if err := claim(s); err != nil {
		return err
	}
	up := &starter{o: o, l: l, s: s, p: p, set: set, seed: seed}
	if err := up.run(ctx); err != nil {
		return up.giveUp(ctx, err)
	}
	return nil
}

// check finds what would make a start fail half-way.
func check(o Options) error {
	if os.Getuid() != 0 {
		return errors.New("a lab makes network namespaces and mounts: run this as root")
	}
	if o.Proxy.Weir() {
		need := []string{"weir-agent", "weir-cni"}
		if o.Install {
			need = append(need, "weir")
		}
		for _, program := range need {
			if _, err := os.Stat(filepath.Join(o.Weir, program)); err != nil {
				return fmt.Errorf("Weir's program %s is missing: build it, or say where it is with --weir-bin: %w", program, err)
			}
		}
	}
	if err := checkOther(o); err != nil {
		return err
	}
	tools := []string{"containerd", "ctr", "runc", "nsenter", "mount", "iptables", "nft", "conntrack"}
	if o.BGP {
		if o.Proxy != plan.ProxyCalico && (!o.Proxy.Weir() || !o.Install || o.Proxy.On() != "") {
			return errors.New("--bgp is for labs that Weir is installed in, without --on, and for those with Calico")
		}
		tools = append(tools, bird)
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is missing on this machine, run hack/setup.sh: %w", tool, err)
		}
	}
	if _, err := os.Stat(dir(o.Name)); err == nil {
		return fmt.Errorf("lab %s exists already: remove it first with: weir-lab down --name %s", o.Name, o.Name)
	}
	spaces, err := network.Find(func(scoped string) bool { return plan.Owns(o.Name, scoped) })
	if err != nil {
		return err
	}
	if len(spaces) > 0 {
		return fmt.Errorf("network namespaces %s exist and belong to no lab: remove them, or choose another --name", strings.Join(spaces, ", "))
	}
	return nil
}

type starter struct {
	o    Options
	l    *plan.Lab
	s    *State
	p    *progress.Reporter
	set  *build.Set
	seed string
}

func (u *starter) run(ctx context.Context) error {
	began := time.Now()
	if err := u.machines(ctx); err != nil {
		return err
	}
	client, err := connect(u.s.Name)
	if err != nil {
		return err
	}
	if err := u.api(ctx, client); err != nil {
		return err
	}
	if u.o.Proxy.KubeProxyMode() != "" {
		if err := u.p.Step("kube-proxy", func() error { return u.kubeProxy(ctx) }); err != nil {
			return err
		}
	}
	if err := u.installOther(ctx); err != nil {
		return err
	}
	if u.o.Proxy.Weir() {
		if !u.o.Install && u.o.Proxy.On() != "" {
			return u.finish(withoutWeir(u.o.Proxy))
		}
		if !u.o.Install {
			return u.finish("nodes stay NotReady until Weir is installed (--no-install)")
		}
		if err := u.p.Step("install Weir", func() error { return u.install(ctx) }); err != nil {
			return err
		}
		if u.o.Proxy.Alongside() {
			if err := u.p.Step("nftables data plane, alongside kube-proxy", func() error { return u.alongside(ctx) }); err != nil {
				return err
			}
		}
	}
	if err := u.p.Step("all nodes Ready", func() error { return awaitReady(ctx, client, u.l, u.o.Timeout) }); err != nil {
		return err
	}
	if u.o.BGP {
		if err := u.p.Step("BGP between the nodes and the router", func() error { return u.bgp(ctx) }); err != nil {
			return err
		}
	}
	ready := time.Since(began)
	if u.o.Proxy == plan.ProxyNone {
		// CoreDNS reaches the API server through a Service address, which nobody
		// serves here.
		return u.finish(fmt.Sprintf("all nodes Ready after %.1f s; no cluster DNS without a Service proxy", ready.Seconds()))
	}
	if err := u.p.Step("CoreDNS available", func() error { return u.dns(ctx, client) }); err != nil {
		return err
	}
	return u.finish(fmt.Sprintf("all nodes Ready after %.1f s, cluster DNS after %.1f s", ready.Seconds(), time.Since(began).Seconds()))
}

func (u *starter) finish(how string) error {
	if u.o.Kubeconfig != "" {
		raw, err := os.ReadFile(KubeconfigPath(u.s.Name))
		if err != nil {
			return fmt.Errorf("read the kubeconfig: %w", err)
		}
		if err := os.WriteFile(u.o.Kubeconfig, raw, 0o600); err != nil {
			return fmt.Errorf("write the kubeconfig to %s: %w", u.o.Kubeconfig, err)
		}
	}
	u.s.Started = true
	if err := u.s.save(); err != nil {
		return err
	}
	u.p.Printf("lab %s is up: %s", u.s.Name, how)
	return nil
}

// machines makes the network and starts all nodes.
func (u *starter) machines(ctx context.Context) error {
	creds, err := nodespec.NewCredentials(u.l)
	if err != nil {
		return err
	}
	if err := os.WriteFile(KubeconfigPath(u.s.Name), creds.Admin, 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	g, _ := errgroup.WithContext(ctx)
	g.Go(func() error {
		return u.p.Step("network", func() error { return network.Up(u.l, u.o.Proxy.RoutesPods()) })
	})
	for _, m := range u.l.Nodes() {
		g.Go(func() error { return u.files(m) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	in, err := u.inputs()
	if err != nil {
		return err
	}
	return u.p.Step(fmt.Sprintf("start %d nodes", len(u.l.Nodes())), func() error {
		for _, m := range u.l.Nodes() {
			if err := ctx.Err(); err != nil {
				return err
			}
			spec, err := nodespec.Render(in, creds, m)
			if err != nil {
				return err
			}
			if err := u.launch(ctx, m, spec); err != nil {
				return err
			}
		}
		return nil
	})
}

func (u *starter) inputs() (nodespec.Inputs, error) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return nodespec.Inputs{}, fmt.Errorf("read the limit of open files: %w", err)
	}
	// A kubelet takes at most this; more comes as "unlimited".
	return nodespec.Inputs{
		Lab: u.l, Proxy: u.o.Proxy, Data: u.s.Data, Programs: u.set.Dir, Program: u.set.Rel, Folders: u.set.Folders(),
		Weir: u.s.Weir, MaxFiles: min(lim.Max, 1_000_000), ReadOnlyRoot: u.o.ReadOnlyRoot,
		FeatureGates: u.o.FeatureGates, SELinux: nodeinit.SELinux(),
	}, nil
}

// files makes a node's folder, with the lab's images in it.
func (u *starter) files(m plan.Machine) error {
	v := filepath.Join(u.s.Data, m.Name, "var")
	for _, d := range []string{"lib", "log"} {
		if err := os.MkdirAll(filepath.Join(v, d), 0o755); err != nil {
			return fmt.Errorf("make the files of node %s: %w", m.Name, err)
		}
	}
	return images.Clone(u.seed, filepath.Join(v, "lib", "containerd"))
}

// launch starts a node's first process and remembers it.
func (u *starter) launch(ctx context.Context, m plan.Machine, spec *nodespec.Spec) error {
	if err := writeJSON(specPath(u.s.Name, m.Name), spec); err != nil {
		return fmt.Errorf("write the specification of node %s: %w", m.Name, err)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, exe, u.o.LaunchStage, specPath(u.s.Name, m.Name), u.initLog(m))
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "PATH="+nodespec.SearchPath(u.set.Folders()))
	err = network.Within(network.Path(plan.Scoped(u.s.Name, m.Name)), cmd.Run)
	if err != nil {
		return fmt.Errorf("start node %s: %w: %s", m.Name, err, strings.TrimSpace(errs.String()))
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil {
		return fmt.Errorf("start node %s: unexpected answer %q", m.Name, out.String())
	}
	start, err := nodeinit.StartTime(pid)
	if err != nil {
		return fmt.Errorf("node %s ended at once, see %s: %w", m.Name, u.initLog(m), err)
	}
	if err := os.WriteFile(pidPath(u.s.Name, m.Name), fmt.Appendf(nil, "%d %d\n", pid, start), 0o600); err != nil {
		return fmt.Errorf("remember node %s: %w", m.Name, err)
	}
	return nil
}

func (u *starter) initLog(m plan.Machine) string {
	return filepath.Join(u.s.Data, m.Name, "var", "log", "init.log")
}

func (u *starter) api(ctx context.Context, client *kubernetes.Clientset) error {
	err := u.p.Step("API server ready", func() error {
		return until(ctx, "API server ready", u.o.Timeout, func(ctx context.Context) error {
			if err := u.nodesAlive(); err != nil {
				return err
			}
			_, err := client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
			return err
		})
	})
	if err != nil {
		return err
	}
	return u.p.Step("nodes registered", func() error { return register(ctx, client, u.l, u.o.Proxy.RoutesPods(), u.o.Timeout) })
}

func (u *starter) nodesAlive() error {
	for _, m := range u.l.Nodes() {
		p, err := u.s.initProcess(m.Name)
		if err != nil {
			return err
		}
		if !p.Alive() {
			return fmt.Errorf("node %s %w, see %s", m.Name, errGone, u.initLog(m))
		}
	}
	return nil
}

// install runs Weir's own installer where the API server can be reached.
func (u *starter) install(ctx context.Context) error {
	args := append([]string{
		"install", "--kubeconfig", KubeconfigPath(u.s.Name), "--image", images.WeirImage,
		"--pod-cidr", u.l.PodCIDRs(), "--api-server", u.l.APIServerAddress(),
	}, u.bgpInstallArgs()...)
	if on := u.o.Proxy.On(); on != "" {
		args = append(args, "--on", on)
	}
	args = append(args, u.o.InstallArgs...)
	return u.inControlPlane(ctx, nil, filepath.Join(u.s.Weir, "weir"), args...)
}

// alongside chooses the data plane that leaves Services to a kube-proxy on its node.
func (u *starter) alongside(ctx context.Context) error {
	return u.inControlPlane(ctx, nil, filepath.Join(u.s.Weir, "weir"), "patch", "felixconfiguration", "default",
		"--kubeconfig", KubeconfigPath(u.s.Name), "--patch", `{"spec":{"bpfEnabled":false}}`)
}

func (u *starter) dns(ctx context.Context, client *kubernetes.Clientset) error {
	var addrs, families []string
	for _, a := range u.l.DNS() {
		addrs, families = append(addrs, strconv.Quote(a.String())), append(families, map[bool]string{true: "IPv4", false: "IPv6"}[a.Is4()])
	}
	policy := "SingleStack"
	if len(addrs) > 1 {
		policy = "RequireDualStack"
	}
	manifest := strings.NewReplacer("IMAGE", images.CoreDNSImage, "CLUSTERIPS", strings.Join(addrs, ", "), "CLUSTERIP", addrs[0],
		"FAMILIES", strings.Join(families, ", "), "FAMILYPOLICY", policy).Replace(corednsYAML)
	err := u.inControlPlane(ctx, []byte(manifest), u.set.Path("kubectl"), "--kubeconfig", KubeconfigPath(u.s.Name), "apply", "-f", "-")
	if err != nil {
		return fmt.Errorf("deploy CoreDNS: %w", err)
	}
	return awaitDNS(ctx, client, u.o.Timeout)
}

// inControlPlane runs a program of this machine in the control-plane node's network
// namespace.
func (u *starter) inControlPlane(ctx context.Context, stdin []byte, program string, args ...string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := network.Within(network.Path(plan.Scoped(u.s.Name, plan.ControlPlane)), cmd.Run); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, strings.TrimSpace(out.String()))
	}
	return nil
}

// giveUp removes a lab that did not come up, and keeps its logs.
func (u *starter) giveUp(ctx context.Context, cause error) error {
	if c := u.s.complaints(); c != "" && ctx.Err() == nil {
		cause = fmt.Errorf("%w\n%s", cause, c)
	}
	if u.o.KeepFailed && ctx.Err() == nil {
		u.s.Started = true
		return errors.Join(cause, u.s.save(), fmt.Errorf("lab %s is left as it is: remove it with: weir-lab down --name %s", u.s.Name, u.s.Name))
	}
	if ctx.Err() != nil {
		u.p.Printf("interrupted: removing lab %s", u.s.Name)
		return errors.Join(errors.New("interrupted"), remove(u.s))
	}
	logs := filepath.Join(u.o.Cache, "logs", u.s.Name)
	if err := u.keepLogs(logs); err != nil {
		u.p.Printf("the nodes' logs are not kept: %v", err)
	} else {
		cause = fmt.Errorf("%w\nthe nodes' logs are in %s", cause, logs)
	}
	u.p.Printf("failed: removing lab %s", u.s.Name)
	return errors.Join(cause, remove(u.s))
}

// keepLogs moves the logs of the nodes' daemons and pods.
func (u *starter) keepLogs(to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, m := range u.l.Nodes() {
		if err := os.Rename(filepath.Join(u.s.Data, m.Name, "var", "log"), filepath.Join(to, m.Name)); err != nil {
			return err
		}
	}
	return nil
}

// Launch is the stage of this program that becomes a node: it is started in the
// node's network namespace, enters its control group and starts the node's first
// process, whose ID it returns.
func Launch(specFile, logFile, initStage string) (int, error) {
	spec, err := nodeinit.ReadSpec(specFile)
	if err != nil {
		return 0, err
	}
	exe, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	return nodeinit.Launch(spec, specFile, logFile, exe, initStage)
}

func writeJSON(path string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o600)
}
