// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
)

// relayVariable is the environment's that names hubble-relay, to which hack/hubble.sh brings it.
const relayVariable = "WEIR_HUBBLE_RELAY"

// TestRelay: hubble-relay of its own project, as it is, finds the agents of two nodes by peer.Peer,
// connects to each by TLS with the certificate that is for it, and answers the hubble CLI for both.
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
	ca, dir := newAuthority(t, "hubble"), t.TempDir()
	listeners, servers := []net.Listener{first, second}, map[string]*testServer{}
	nodes := func() []Node {
		return []Node{{"n1", []netip.Addr{at.Addr()}}, {"n2", []netip.Addr{netip.MustParseAddr("127.0.77.2")}}}
	}
	for i, node := range []string{"n1", "n2"} {
		s := newTestServerOf(t, node)
		s.Nodes, s.Port = nodes, at.Port()
		folder := filepath.Join(dir, node)
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		files := ca.write(folder, ca.pair(ServerName(node), x509.ExtKeyUsageServerAuth))
		serving(t, func(ctx context.Context) error { return s.serveTLS(ctx, listeners[i], files) })
		servers[node] = s
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
	client := ca.write(dir, ca.pair("relay", x509.ExtKeyUsageClientAuth))
	ctx, cancel := context.WithCancel(t.Context())
	relay := exec.CommandContext(ctx, program, "serve", "--peer-service", "unix://"+servers["n1"].socket, "--listen-address", address, "--health-listen-address", "127.0.0.1:0", "--gops=false",
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
}
