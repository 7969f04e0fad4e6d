// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
)

// plane is a data plane's process.
type plane struct {
	name  string
	world *world
	args  []string
	ready string // what it logs when all is programmed; empty = nothing
	// pause is between an effect and the next change. kube-proxy puts off what comes within a
	// second of its last work: a change that comes alone is what is measured, not the queue behind
	// it.
	pause time.Duration
	proc  *exec.Cmd
	out   string
	tidy  func()
}

func (w *world) plane(name string) *plane {
	p := &plane{name: name, world: w, out: filepath.Join(w.dir, name+".log"), pause: 30 * time.Millisecond, tidy: func() {}}
	mode, isProxy := strings.CutPrefix(name, "kube-proxy-")
	switch {
	case name == "weir":
		bpffs := filepath.Join(w.dir, "bpffs")
		w.must(os.MkdirAll(bpffs, 0o755))
		p.args = []string{os.Getenv(agentEnv), "--node-name", nodeName, "--kubeconfig", w.server.Kubeconfig(), "--state-dir", filepath.Join(w.dir, "state"),
			"--run-dir", filepath.Join(w.dir, "run"), "--bpffs", filepath.Join(bpffs, "weir"), "--bpffs-mount", bpffs, "--cgroup", w.cgroup,
			"--cni-conf-dir", filepath.Join(w.dir, "net.d")}
		p.ready = "the node's state is in the kernel"
		p.tidy = func() {
			os.RemoveAll(filepath.Join(bpffs, "weir"))
			unix.Unmount(bpffs, unix.MNT_DETACH)
			for _, dev := range []string{"weir0", "weir.vxlan"} {
				exec.Command("ip", "link", "del", dev).Run()
			}
		}
	case isProxy:
		program := w.server.Program("kube-proxy")
		if program == "" {
			w.t.Fatal("there is no kube-proxy alongside the API server")
		}
		p.pause = 1500 * time.Millisecond
		p.args = []string{program, "--proxy-mode", mode, "--kubeconfig", w.server.Kubeconfig(), "--hostname-override", nodeName,
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"}
		p.tidy = func() {
			if out, err := exec.Command(program, "--cleanup", "--proxy-mode", mode).CombinedOutput(); err != nil {
				w.t.Logf("cleaning up after %s: %v\n%s", name, err, out)
			}
		}
	default:
		w.t.Fatalf("%s: there is no data plane %q", planesEnv, name)
	}
	return p
}

func (p *plane) start() {
	log, err := os.Create(p.out)
	p.world.must(err)
	defer log.Close()
	p.proc = exec.Command(p.args[0], p.args[1:]...)
	p.proc.Stdout, p.proc.Stderr = log, log
	// Room for 100,000 Services; the defaults are for 65,536 frontends.
	p.proc.Env = append(os.Environ(), "FELIX_BPFMapSizeNATFrontend=262144", "FELIX_BPFMapSizeNATBackend=1048576")
	p.proc.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.world.must(p.proc.Start())
}

func (p *plane) stop() {
	p.proc.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() { p.proc.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		p.proc.Process.Kill()
		<-done
	}
}

func (p *plane) cleanup() { p.tidy() }

// programmed reports what the data plane says itself.
func (p *plane) programmed() bool {
	if p.ready == "" {
		return true
	}
	return bytes.Contains(p.log(), []byte(p.ready))
}

func (p *plane) log() []byte {
	b, err := os.ReadFile(p.out)
	p.world.must(err)
	return b
}

// cpu is what the process and the programs that it ran have used.
func (p *plane) cpu() time.Duration {
	// The clock of another process: see clock_getcpuclockid(3).
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^p.proc.Process.Pid<<3|2), &ts); err != nil {
		p.world.t.Fatalf("reading the CPU time of %s: %v\n%s", p.name, err, p.log())
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.proc.Process.Pid))
	p.world.must(err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	var children int64
	for _, f := range fields[13:15] { // cutime, cstime in ticks of 10 ms
		n, err := strconv.ParseInt(f, 10, 64)
		p.world.must(err)
		children += n
	}
	return time.Duration(ts.Nano()) + time.Duration(children)*10*time.Millisecond
}

// memory is the resident memory now and at most, MiB.
func (p *plane) memory() (now, peak float64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.proc.Process.Pid))
	p.world.must(err)
	for _, line := range strings.Split(string(status), "\n") {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f", &kib); n == 1 {
			now = kib / 1024
		}
		if n, _ := fmt.Sscanf(line, "VmHWM: %f", &kib); n == 1 {
			peak = kib / 1024
		}
	}
	return now, peak
}

// install makes the kinds that the agent watches, and a pool.
func (w *world) install() {
	objects, err := deploy.Objects(deploy.Defaults())
	w.must(err)
	api := w.server.Clients.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, u := range objects {
		if u.GetKind() == "CustomResourceDefinition" {
			_, err := api.Create(w.ctx, u, v1.CreateOptions{})
			w.must(err)
		}
	}
	pool := &unstructured.Unstructured{}
	w.must(yaml.Unmarshal([]byte(`{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: pods},
spec: {cidr: 10.64.0.0/10, vxlanMode: Never, ipipMode: Never}}`), &pool.Object))
	pools := w.server.Clients.Dynamic.Resource(schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "ippools"})
	apitest.Eventually(w.t, time.Minute, "making a pool", func() error {
		_, err := pools.Create(context.WithoutCancel(w.ctx), pool, v1.CreateOptions{})
		return err
	})
}
