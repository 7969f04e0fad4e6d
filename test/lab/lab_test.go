//go:build lab

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
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

	rest    *rest.Config
	kube    *kubernetes.Clientset
	dynamic dynamic.Interface
}

// connect makes clients of the API server that dial inside of the lab.
func (l *lab) connect(ctx context.Context) error {
	raw, err := os.ReadFile(filepath.Join("/run/weir-lab", l.name, "admin.conf"))
	if err != nil {
		return fmt.Errorf("read the kubeconfig of lab %s: %w", l.name, err)
	}
	if l.rest, err = clientcmd.RESTConfigFromKubeConfig(raw); err != nil {
		return err
	}
	l.rest.Dial = l.dial
	l.rest.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
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

// dial opens a socket in the network namespace of client1. Addresses in a lab's kubeconfig are numbers,
// so the one socket is opened on the thread that is there.
func (l *lab) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		conn, err := func() (net.Conn, error) {
			home, err := netns.Get()
			if err != nil {
				return nil, err
			}
			defer home.Close()
			there, err := netns.GetFromPath(filepath.Join("/run/netns", l.name+"-client1"))
			if err != nil {
				return nil, err
			}
			defer there.Close()
			if err := netns.Set(there); err != nil {
				return nil, err
			}
			conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, network, addr)
			if netns.Set(home) == nil {
				runtime.UnlockOSThread() // else the thread ends with this goroutine
			}
			return conn, err
		}()
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func (l *lab) command(ctx context.Context, verb string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(l.bin, "weir-lab"), append([]string{verb, "--name", l.name}, args...)...)
	c.WaitDelay = 5 * time.Second
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
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
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
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	return output(l.command(ctx, "kubectl", args...), stdin)
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
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := l.command(ctx, "exec", append([]string{"client1", "--", filepath.Join(l.bin, "weir")}, args...)...)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("weir %s: %v", strings.Join(args, " "), err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// patchFelix changes the FelixConfiguration "default", and changes the fields back to nothing when the
// test ends.
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

// eventually tries until f returns nil.
func eventually(t *testing.T, limit time.Duration, what string, f func() error) {
	t.Helper()
	if err := poll(limit, f); err != nil {
		t.Fatalf("%s: not within %v: %v", what, limit, err)
	}
}

func poll(limit time.Duration, f func() error) error {
	began := time.Now()
	for {
		err := f()
		if err == nil || time.Since(began) > limit {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
