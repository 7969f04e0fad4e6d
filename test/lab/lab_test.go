// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/await"
	benchlab "github.com/weir-net/weir/internal/bench/lab"
)

// Machines of every lab.
const (
	cpAddr      = "172.31.1.8"
	worker1Addr = "172.31.1.207"
	worker2Addr = "172.31.1.208"
	client1Addr = "172.31.1.55"
	client2Addr = "172.31.1.162"
	client3Addr = "172.31.2.55"
)

var nodes = map[string]string{"cp": cpAddr, "worker1": worker1Addr, "worker2": worker2Addr}

// lab is a running lab.
type lab struct {
	name    string
	bin     string // folder of our programs
	traffic string // the traffic program
	own     bool   // we started it

	starting sync.Mutex // held while it is started or removed
	tests    int        // that have not ended, after the last of which it is removed; 0 = at the end of the run
	parallel sync.Mutex // held by the one of its tests that runs in parallel with those of other labs

	rest    *rest.Config
	kube    *kubernetes.Clientset
	dynamic dynamic.Interface
}

// connect makes clients of the API server that dial inside of the lab.
func (l *lab) connect(ctx context.Context) error {
	var err error
	if l.rest, err = benchlab.REST(l.name); err != nil {
		return err
	}
	l.rest.QPS, l.rest.Burst = 200, 400
	if l.kube, err = kubernetes.NewForConfig(l.rest); err != nil {
		return err
	}
	if l.dynamic, err = dynamic.NewForConfig(l.rest); err != nil {
		return err
	}
	_, err = l.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	return err
}

// oneOther is held by the test of a lab other than the first that runs. A lab takes a third of a
// CPU when nothing happens in it: five of them at once left an API server without an answer for
// minutes on a machine of two.
var oneOther sync.Mutex

// inParallel lets a test of this lab run in parallel with tests of other labs, when all that do not
// ask for it have run: those that wait most of the time. Two of one lab run one after the other,
// and so do those of labs other than the first, which are removed after their last test. With
// -judge, where figures count, each runs alone.
func (l *lab) inParallel(t *testing.T) {
	t.Helper()
	if *strictTiming {
		return
	}
	t.Parallel()
	began := time.Now()
	if l != all {
		oneOther.Lock()
		t.Cleanup(oneOther.Unlock)
	}
	l.parallel.Lock()
	t.Cleanup(func() {
		if l.tests--; l.tests == 0 {
			l.tearDown(map[bool]int{true: 1}[t.Failed()])
		}
		l.parallel.Unlock()
	})
	fmt.Printf("    %s: waited %.0f s for other tests\n", t.Name(), time.Since(began).Seconds())
}

func (l *lab) command(ctx context.Context, verb string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(l.bin, "weir-lab"), append([]string{verb, "--name", l.name}, args...)...)
	c.WaitDelay = 30 * time.Second
	return c
}

// output runs a command; its error carries what it said.
func output(c *exec.Cmd, stdin string) (string, error) {
	var out, say bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &say
	if stdin == "" {
		c.Stdin = nil
	}
	err := c.Run()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(say.String()+" "+out.String()))
	}
	return out.String(), err
}

// exec runs a command on a machine of the lab.
func (l *lab) exec(machine string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return output(l.command(ctx, "exec", append([]string{machine, "--"}, args...)...), "")
}

// must is exec, and a failure ends the test.
func (l *lab) must(t *testing.T, machine string, args ...string) string {
	t.Helper()
	out, err := l.exec(machine, args...)
	if err != nil {
		t.Fatalf("%s: %s: %v", machine, strings.Join(args, " "), err)
	}
	return out
}

func (l *lab) kubectl(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return output(l.command(ctx, "kubectl", args...), stdin)
}

// nodeStatus is the status of a node's NodeStatus.
func (l *lab) nodeStatus(node string) (s weirv1.NodeStatusStatus, err error) {
	u, err := l.dynamic.Resource(weirv1.NodeStatuses).Get(context.Background(), node, metav1.GetOptions{})
	if err != nil {
		return s, err
	}
	var of weirv1.NodeStatus
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &of)
	return of.Status, err
}

func (l *lab) mustKubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := l.kubectl(stdin, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// weir runs the command line as the lab's administrator and returns its output and exit code.
func (l *lab) weir(t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := l.command(ctx, "exec", append([]string{"client1", "--", filepath.Join(l.bin, "weir")}, args...)...)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("weir %s: %v", strings.Join(args, " "), err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// patchFelix changes the FelixConfiguration "default", and changes the fields back to nothing when
// the test ends.
func (l *lab) patchFelix(t *testing.T, spec string, fields ...string) {
	t.Helper()
	if out, code := l.weir(t, "patch", "felixconfiguration", "default", "--patch", `{"spec":`+spec+`}`); code != 0 {
		t.Fatalf("patch the FelixConfiguration: %s", out)
	}
	t.Cleanup(func() {
		for _, f := range fields {
			l.weir(t, "patch", "felixconfiguration", "default", "--patch", `{"spec":{"`+f+`":null}}`)
		}
	})
}

// eventually tries until f returns nil, for the limit or as long as every test waits at least.
func eventually(t *testing.T, limit time.Duration, what string, f func() error) {
	t.Helper()
	limit = max(limit, await.Patience)
	if err := poll(limit, f); err != nil {
		t.Fatalf("%s: not within %v: %v", what, limit, err)
	}
}

// poll looks less often at what takes long, for it needs the processors that are looked from.
func poll(limit time.Duration, f func() error) error {
	began := time.Now()
	for {
		err := f()
		waited := time.Since(began)
		if err == nil || waited > limit {
			return err
		}
		time.Sleep(min(max(100*time.Millisecond, waited/20), time.Second))
	}
}
