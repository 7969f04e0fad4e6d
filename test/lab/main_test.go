// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var (
	labFlag     = flag.String("lab", "", "use this lab, and leave it")
	dualFlag    = flag.String("dual-lab", "", "use this lab of both families (weir-lab up --ip-family dual --install-arg=--fanout=always), and leave it")
	ipv6Flag    = flag.String("ipv6-lab", "", "use this lab of IPv6 alone (weir-lab up --ip-family ipv6), and leave it")
	bgpFlag     = flag.String("bgp-lab", "", "use this lab with racks (weir-lab up --bgp --ip-family dual), and leave it")
	otherFlag   = flag.String("on-lab", "", "use this lab without Weir (weir-lab up --on generic --no-install), and leave it")
	awsFlag     = flag.String("aws-lab", "", "use this lab without Weir (weir-lab up --on aws-vpc-cni --no-install), and leave it")
	aws6Flag    = flag.String("aws-ipv6-lab", "", "use this lab without Weir (weir-lab up --on aws-vpc-cni --ip-family ipv6 --no-install), and leave it")
	azureFlag   = flag.String("azure-lab", "", "use this lab without Weir (weir-lab up --on azure-cni --no-install), and leave it")
	overlayFlag = flag.String("azure-overlay-lab", "", "use this lab without Weir (weir-lab up --on azure-cni-overlay --no-install), and leave it")
	cloudsAll   = flag.Bool("clouds-all", false, "with the CNI plugins of clouds go to the nftables data plane and back, too, alongside a kube-proxy and in its place")
	// That of TestFromKubeProxy.
	proxyFlag = flag.String("proxy-lab", "", "use this lab of Weir and a kube-proxy (weir-lab up --proxy weir+kube-proxy-iptables), and leave it")
	proxyAll  = flag.Bool("proxy-all", false, "go from each of kube-proxy's modes to Weir in each way; otherwise once from each")
	// The lab of both families has --fanout=always in any case.
	installFlag = flag.String("install", "", "further arguments of weir install for the labs that are brought up, with spaces between: --fanout=always has agents fed by a fan-out")
	binFlag     = flag.String("bin", "../../bin", "folder with Weir's programs and weir-lab")
	keepFlag    = flag.Bool("keep", false, "leave the lab when a test failed")
	// Figures are always written; a machine that has other work to do, as tests of other labs are,
	// fails no test by them.
	strictTiming = flag.Bool("judge", false, "tests fail when something takes longer than is promised of a machine with nothing else to do, and none runs in parallel with another")
)

// all is the lab of this package's tests; both, of TestDualStack and TestFanOut, has both families
// and a fan-out; alongside is the one of TestFromKubeProxy, racks that of TestBGPRacks, other that
// of TestOnGeneric, alone that of TestIPv6Alone.
var all, both, alongside, racks, other, alone *lab

// clouds are those of TestOnAWS, TestOnAzure and TestOnAzureOverlay, which add them before any test
// runs in parallel.
var clouds []*lab

// interrupted ends with the first signal that ends the run.
var interrupted context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	interrupted = ctx
	dir, err := os.MkdirTemp("", "weir-test-lab-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	go control.run()
	if err := setUp(ctx, dir); err != nil {
		fmt.Println("lab tests:", err)
		tearDown(1)
		return 1
	}
	fmt.Printf("lab tests: lab %s is ready after %.0f s\n", all.name, time.Since(began).Seconds())
	// A test run cannot be cut short from within: what is left is to clean up and end.
	ended := make(chan struct{})
	defer func() { close(ended); stop() }()
	go func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		fmt.Println("lab tests: interrupted")
		tearDown(0)
		os.RemoveAll(dir)
		os.Exit(1)
	}()
	if err := allInParallel(); err != nil {
		fmt.Println("lab tests:", err)
	}
	code := m.Run()
	if err := figures.write("../../out/lab.json"); err != nil {
		fmt.Println("lab tests:", err)
		code = 1
	}
	tearDown(code)
	fmt.Printf("lab tests: %.0f s in all\n", time.Since(began).Seconds())
	return code
}

// allInParallel lets all tests that ask for it (inParallel) run in parallel, unless the command
// line says how many: there is one of each lab at most, and most of them wait.
func allInParallel() error {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", "100")
}

func setUp(ctx context.Context, dir string) error {
	bin, err := filepath.Abs(*binFlag)
	if err != nil {
		return err
	}
	for _, p := range []string{"weir-lab", "weir", "weir-agent", "weir-cni", "weir-controller", "weir-fanout", "weir-flows"} {
		if _, err := os.Stat(filepath.Join(bin, p)); err != nil {
			return fmt.Errorf("%s is not built: run make build: %w", p, err)
		}
	}
	traffic := filepath.Join(dir, "traffic")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", traffic, "./traffic")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the traffic program: %w\n%s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	name := *labFlag
	if name == "" {
		name = fmt.Sprintf("weir-e2e-%d", os.Getpid()%1000000)
		// All that is needed for its removal is known before it is started.
		all = &lab{name: name, bin: bin, traffic: traffic, own: true}
		// Read-only root file systems, as container operating systems have them: what needs a place
		// to write that is not documented fails here.
		if err := all.up(ctx, "--read-only-root"); err != nil {
			return err
		}
	} else {
		all = &lab{name: name, bin: bin, traffic: traffic}
	}
	return all.connect(ctx)
}

// up starts a lab of two workers, unless the run was interrupted.
func (l *lab) up(ctx context.Context, args ...string) error {
	l.starting.Lock()
	defer l.starting.Unlock()
	args = append([]string{"--name", l.name, "up", "--proxy", "weir", "--workers", "2"}, args...)
	for _, arg := range strings.Fields(*installFlag) {
		args = append(args, "--install-arg="+arg)
	}
	up := exec.CommandContext(ctx, filepath.Join(l.bin, "weir-lab"), args...)
	up.Stdout, up.Stderr = os.Stdout, os.Stderr
	up.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	up.Cancel = func() error { return up.Process.Signal(os.Interrupt) }
	up.WaitDelay = time.Minute
	if err := up.Run(); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return nil
}

// tearDown leaves nothing of what the tests made.
func tearDown(code int) {
	var labs sync.WaitGroup
	for _, l := range append([]*lab{all, both, alongside, racks, other, alone}, clouds...) {
		if l != nil {
			labs.Go(func() { l.tearDown(code) })
		}
	}
	labs.Wait()
}

func (l *lab) tearDown(code int) {
	l.starting.Lock() // after an interrupt it ends at once
	defer l.starting.Unlock()
	l.removeNamespaces()
	if !l.own || code != 0 && *keepFlag {
		return
	}
	down := exec.Command(filepath.Join(l.bin, "weir-lab"), "--name", l.name, "down")
	down.Stdout, down.Stderr = os.Stdout, os.Stderr
	down.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := down.Run(); err != nil {
		fmt.Println("lab tests: remove the lab:", err)
		return
	}
	l.own, l.kube = false, nil // nothing is left for the end of the run
}
