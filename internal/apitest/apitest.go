// SPDX-License-Identifier: Apache-2.0

// Package apitest runs a real kube-apiserver with etcd for tests, in network and process namespaces
// of their own: nothing of it is reachable from outside, and everything of it ends with the test.
//
// The two programs are looked for in the folder that WEIR_APISERVER_BIN_DIR names; tests are
// skipped when that is not set.
package apitest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/nettest"
)

const (
	binDirEnv = "WEIR_APISERVER_BIN_DIR"
	insideEnv = "WEIR_APITEST_INSIDE"
	// Advertised is the address and port behind the Service "kubernetes". Nothing is
	// there.
	Advertised = "192.0.2.8:6443"
)

// Isolated runs the calling test anew in namespaces of its own (network, processes, mounts), and
// returns false in the outer one, which must return then. It skips the test when the programs are
// not there.
func Isolated(t *testing.T) bool {
	t.Helper()
	return IsolatedFor(t, 15*time.Minute)
}

// IsolatedFor is Isolated with a limit of its own.
func IsolatedFor(t *testing.T, limit time.Duration) bool {
	t.Helper()
	if os.Getenv(binDirEnv) == "" {
		t.Skipf("%s is not set: it names a folder with kube-apiserver and etcd", binDirEnv)
	}
	if os.Getenv(insideEnv) == t.Name() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Fatalf("bring the loopback device up: %v", err)
		}
		if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatalf("make mounts private: %v", err)
		}
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			t.Fatalf("mount /proc of the process namespace: %v", err)
		}
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run="+nettest.OnlyTest(t.Name()), "-test.v", "-test.timeout="+limit.String())
	cmd.Env = append(os.Environ(), insideEnv+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout = &out
	if testing.Verbose() { // what takes long shows how it gets on
		cmd.Stdout = io.MultiWriter(os.Stdout, &out)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	nettest.Played(t, out.Bytes())
	return false
}

// T is a test, or a program that has what tests have of one.
type T interface {
	await.T
	Fatal(args ...any)
	TempDir() string
	Cleanup(f func())
}

// Server is a running API server.
type Server struct {
	t         T
	dir, bin  string
	flags     []string
	apiserver *exec.Cmd
	// Config has all rights.
	Config *rest.Config
	// Clients use Config.
	Clients *clientset.Clients
}

// Start starts etcd and the API server and waits until it is ready. Flags are of kube-apiserver,
// and replace those of the same name that it gets otherwise.
func Start(t T, flags ...string) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), bin: os.Getenv(binDirEnv), flags: flags}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	s.file("sa.key", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	s.frontProxy()
	s.file("tokens.csv", []byte("admin-token,admin,1,system:masters\n"))
	etcd := s.run("etcd", "--data-dir="+filepath.Join(s.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=default=http://127.0.0.1:2380", "--log-level=error")
	t.Cleanup(func() { end(etcd) })
	s.Config = &rest.Config{Host: "https://127.0.0.1:6443", BearerToken: "admin-token", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if s.Clients, err = clientset.New(s.Config, "weir-test"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop() })
	s.StartAPIServer()
	return s
}

// Etcd is where etcd answers, without encryption.
const Etcd = "http://127.0.0.1:2379"

// Program returns the path of another program of the same release, such as kube-proxy; empty when
// there is none.
func (s *Server) Program(name string) string {
	server, err := filepath.EvalSymlinks(filepath.Join(s.bin, "kube-apiserver"))
	if err != nil {
		return ""
	}
	path := filepath.Join(filepath.Dir(server), name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// Kubeconfig writes a kubeconfig file with all rights and returns its path.
func (s *Server) Kubeconfig() string { return s.KubeconfigFor(s.Config.Host) }

// KubeconfigFor is Kubeconfig for who reaches the server at another URL. It replaces the file that
// was written before.
func (s *Server) KubeconfigFor(url string) string {
	s.t.Helper()
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: url, InsecureSkipTLSVerify: true}
	cfg.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: s.Config.BearerToken}
	cfg.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	cfg.CurrentContext = "x"
	file := filepath.Join(s.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// StartAPIServer starts the API server, also again after Stop, and waits until it is ready.
func (s *Server) StartAPIServer() {
	s.t.Helper()
	s.apiserver = s.run("kube-apiserver", append([]string{"--etcd-servers=http://127.0.0.1:2379", "--bind-address=127.0.0.1", "--secure-port=6443",
		"--advertise-address=192.0.2.8", "--service-cluster-ip-range=10.96.0.0/12", "--authorization-mode=RBAC",
		"--token-auth-file=" + filepath.Join(s.dir, "tokens.csv"), "--cert-dir=" + filepath.Join(s.dir, "certs"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + filepath.Join(s.dir, "sa.key"),
		"--service-account-signing-key-file=" + filepath.Join(s.dir, "sa.key"), "--shutdown-delay-duration=0", "--allow-privileged=true",
		"--requestheader-client-ca-file=" + filepath.Join(s.dir, "front-proxy-ca.crt"), "--requestheader-allowed-names=" + frontProxyName,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + filepath.Join(s.dir, "front-proxy.crt"), "--proxy-client-key-file=" + filepath.Join(s.dir, "front-proxy.key"),
		"--enable-aggregator-routing=true"}, s.flags...)...)
	deadline := time.Now().Add(2 * await.Patience)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		raw, err := s.Clients.Kube.(*kubernetes.Clientset).RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(s.dir, "kube-apiserver.log"))
			s.t.Fatalf("the API server is not ready: %v %s\n%s", err, raw, log[max(0, len(log)-4000):])
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Stop kills the API server; etcd goes on.
func (s *Server) Stop() {
	if s.apiserver != nil {
		end(s.apiserver)
		s.apiserver = nil
	}
}

// As returns clients of another user, with extra as from a token that names a node; node may be
// empty.
func (s *Server) As(user, node string) *clientset.Clients {
	s.t.Helper()
	cfg := rest.CopyConfig(s.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	if node != "" {
		cfg.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	c, err := clientset.New(cfg, "weir-test")
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// Create makes an object, with all rights, where it is not there; a kind that was defined just now
// takes a moment to be served.
func (s *Server) Create(u *unstructured.Unstructured) {
	s.t.Helper()
	gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
	var to dynamic.ResourceInterface = s.Clients.Dynamic.Resource(gvr)
	if ns := u.GetNamespace(); ns != "" {
		to = s.Clients.Dynamic.Resource(gvr).Namespace(ns)
	}
	Eventually(s.t, time.Minute, "creating "+u.GetKind()+" "+u.GetName(), func() error {
		_, err := to.Create(context.Background(), u.DeepCopy(), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

func (s *Server) file(name string, content []byte) {
	if err := os.WriteFile(filepath.Join(s.dir, name), content, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) run(program string, args ...string) *exec.Cmd {
	s.t.Helper()
	log, err := os.Create(filepath.Join(s.dir, program+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(s.bin, program), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("start %s: %v", program, err)
	}
	return cmd
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// Object makes an unstructured object; spec may be nil.
func Object(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}
	if spec != nil {
		u.Object["spec"] = spec
	}
	return u
}

// Eventually waits until check returns nil, for within or await.Patience, whichever is longer.
func Eventually(t await.T, within time.Duration, what string, check func() error) {
	t.Helper()
	await.Within(t, within, what, check)
}
