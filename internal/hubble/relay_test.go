// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hubble/servername"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/peerauth/nodecert"
)

// relayVariable is the environment's that names hubble-relay, to which hack/hubble.sh brings it.
const relayVariable = "WEIR_HUBBLE_RELAY"

// asked is an agent's questions, as the controller asks them.
type asked struct{ http.Handler }

func (a asked) Ask(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, path, body))
	return w.Result(), nil
}

// certified has the certificates that Weir's controller makes: of the agents of nodes, each its
// own, and of a client.
func certified(t *testing.T, dir string, nodes ...string) (agents []Files, client Files) {
	t.Helper()
	const namespace, reader = "kube-system", "reader"
	of := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	kube := fake.NewClientset(&corev1.Secret{ObjectMeta: of(peerauth.HubbleName)}, &corev1.ConfigMap{ObjectMeta: of(peerauth.HubbleName)}, &corev1.Secret{ObjectMeta: of(reader)})
	k := &peerauth.Keeper{Kube: kube, Namespace: namespace, Object: peerauth.HubbleName, Domain: servername.Domain, Clients: true, Now: time.Now}
	bundle, err := k.Ensure(t.Context())
	if err = errors.Join(err, k.CertifyReader(t.Context(), reader, "hubble-relay")); err != nil {
		t.Fatal(err)
	}
	have, err := kube.CoreV1().Secrets(namespace).Get(t.Context(), reader, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client = Files{Cert: filepath.Join(dir, "reader.crt"), Key: filepath.Join(dir, "reader.key"), CA: filepath.Join(dir, "ca.crt")}
	for path, text := range map[string][]byte{client.Cert: have.Data["tls.crt"], client.Key: have.Data["tls.key"], client.CA: bundle} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	signer := &nodecert.Signer{Sign: k.SignRequest, Names: servername.Certified, Log: slog.New(slog.DiscardHandler)}
	for _, node := range nodes {
		h := &nodecert.Holder{Name: servername.Of(node), Now: time.Now}
		mux := http.NewServeMux()
		for pattern, handler := range h.Questions() {
			mux.HandleFunc(pattern, handler)
		}
		serving(t, func(ctx context.Context) error { signer.Keep(ctx, node, asked{mux}); return nil })
		await.That(t, "the agent has a certificate", func() error { _, err := h.Certificate(); return err })
		agents = append(agents, Files{CA: client.CA, Group: peerauth.ReadersGroup, Issued: h.Certificate})
	}
	return agents, client
}

// keyPair are files with an agent's certificate and its key.
func keyPair(t *testing.T, dir string, issued func() (*tls.Certificate, error)) Files {
	t.Helper()
	cert, err := issued()
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	f := Files{Cert: filepath.Join(dir, "agent.crt"), Key: filepath.Join(dir, "agent.key")}
	for path, block := range map[string]*pem.Block{f.Cert: {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, f.Key: {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestRelay: hubble-relay of its own project, as it is, finds the agents of two nodes by peer.Peer
// at one of them, connects to each by TLS with certificates of Weir's authority, and answers the
// hubble CLI for both. The CLI asks an agent itself by the same certificate, and not without.
func TestRelay(t *testing.T) {
	needCLI(t)
	program := os.Getenv(relayVariable)
	if program == "" {
		t.Skipf("NOT RUN: %s is not set: hack/hubble.sh builds hubble-relay", relayVariable)
	}
	t.Parallel()
	first, err := net.Listen("tcp", "127.0.77.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(first.Addr().String())
	second, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.77.2"), at.Port()).String())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files, client := certified(t, dir, "n1", "n2")
	listeners := []net.Listener{first, second}
	nodes := func() []Node {
		return []Node{{"n1", []netip.Addr{at.Addr()}}, {"n2", []netip.Addr{netip.MustParseAddr("127.0.77.2")}}}
	}
	for i, node := range []string{"n1", "n2"} {
		s := newTestServerOf(t, node)
		s.Nodes, s.Port = nodes, at.Port()
		serving(t, func(ctx context.Context) error { return s.serveTLS(ctx, listeners[i], files[i]) })
		s.record(uint16(40001+i), 1+i)
		s.Records.Flush()
	}
	// Where the relay listens: a port that was free.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	relay := exec.CommandContext(ctx, program, "serve", "--peer-service", first.Addr().String(), "--listen-address", address, "--health-listen-address", "127.0.0.1:0", "--gops=false",
		"--disable-server-tls", "--tls-hubble-client-cert-file", client.Cert, "--tls-hubble-client-key-file", client.Key, "--tls-hubble-server-ca-files", client.CA, "--retry-timeout", "1s")
	relay.Dir = dir
	var said bytes.Buffer
	relay.Stdout, relay.Stderr = &said, &said
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = relay.Wait() // it was ended
		if t.Failed() {
			t.Logf("hubble-relay says:\n%s", said.String())
		}
	}()
	run := func(args ...string) (string, error) {
		asking, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := exec.CommandContext(asking, os.Getenv(cliVariable), append(args, "--server", address)...)
		c.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := c.CombinedOutput()
		return string(out), err
	}
	await.That(t, "hubble-relay has connected to the agents of both nodes", func() error {
		out, err := run("status")
		if err == nil && !strings.Contains(out, "Connected Nodes: 2/2") {
			err = fmt.Errorf("it says %s", out)
		}
		return err
	})
	for _, c := range []struct {
		args      []string
		has, lack []string
	}{
		{[]string{"list", "nodes"}, []string{"n1", "n2", "Connected"}, nil},
		{[]string{"observe", "--last", "10", "-o", "json"}, []string{`"node_name":"n1"`, `"source_port":40001`, `"node_name":"n2"`, `"source_port":40002`}, nil},
		{[]string{"observe", "--last", "10", "--node-name", "n2", "-o", "json"}, []string{`"source_port":40002`}, []string{`"source_port":40001`}},
	} {
		out, err := run(c.args...)
		if err != nil {
			t.Errorf("%q: %v: %s", c.args, err, out)
		}
		for _, text := range c.has {
			if !strings.Contains(out, text) {
				t.Errorf("%q: no %q:\n%s", c.args, text, out)
			}
		}
		for _, text := range c.lack {
			if strings.Contains(out, text) {
				t.Errorf("%q: %q:\n%s", c.args, text, out)
			}
		}
	}
	agent := func(node string, more ...string) (string, error) {
		asking, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := exec.CommandContext(asking, os.Getenv(cliVariable), append([]string{"observe", "--last", "10", "--server", "tls://" + first.Addr().String(), "--tls-ca-cert-files", client.CA, "--tls-server-name", servername.Of(node)}, more...)...)
		c.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if out, err := agent("n1", "--tls-client-cert-file", client.Cert, "--tls-client-key-file", client.Key); err != nil || !strings.Contains(out, ":40001") {
		t.Errorf("with the client's certificate: %v: %s", err, out)
	}
	if out, err := agent("n2", "--tls-client-cert-file", client.Cert, "--tls-client-key-file", client.Key); err == nil || strings.Contains(out, ":40001") {
		t.Errorf("n1's agent answers as n2's: %v: %s", err, out)
	}
	own := keyPair(t, dir, files[0].Issued)
	for what, more := range map[string][]string{"without a certificate": nil, "with that of an agent": {"--tls-client-cert-file", own.Cert, "--tls-client-key-file", own.Key}} {
		if out, err := agent("n1", more...); err == nil || strings.Contains(out, ":40001") {
			t.Errorf("%s: %v: %s", what, err, out)
		}
	}
}
