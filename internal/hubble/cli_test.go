// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// cliVariable is the environment's that names the hubble CLI, to which hack/hubble.sh brings it.
const cliVariable = "WEIR_HUBBLE"

// needCLI skips a test where the hubble CLI is not there.
func needCLI(t *testing.T) {
	t.Helper()
	if os.Getenv(cliVariable) == "" {
		t.Skipf("NOT RUN: %s is not set: hack/hubble.sh builds the hubble CLI", cliVariable)
	}
}

// cli is a command of the hubble CLI of its own project, for a server.
func (s *testServer) cli(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(ctx, os.Getenv(cliVariable), append(args, "--server", "unix://"+s.socket)...)
	c.Env = append(os.Environ(), "HOME="+t.TempDir()) // no settings of whoever runs this
	return c
}

// The hubble CLI as it is finds what it asks for.
func TestCLI(t *testing.T) {
	needCLI(t)
	t.Parallel()
	s := newTestServer(t)
	s.record(40000, 1)
	s.deny(2)
	s.Records.Flush()
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := s.cli(ctx, t, args...).CombinedOutput()
		return string(out), err
	}
	const allowed, denied = "shop/web-5d8-abcde:40000", "2001:db8::9"
	for _, c := range []struct {
		args      []string
		has, lack []string
	}{
		{[]string{"status"}, []string{"Healthcheck (via unix://", "Ok", "Current/Max Flows: 2/8 (25.00%)"}, nil},
		{[]string{"list", "nodes"}, []string{"n1", "Connected"}, nil},
		{[]string{"list", "namespaces"}, []string{"shop", "db"}, nil},
		{[]string{"observe"}, []string{allowed, denied, "db/pg-0:5432", "FORWARDED", "DROPPED", "TCP Flags: SYN, ACK"}, nil},
		{[]string{"observe", "--verdict", "DROPPED"}, []string{denied, "Policy denied", "DROPPED"}, []string{allowed}},
		{[]string{"observe", "--from-pod", "shop/web"}, []string{allowed}, []string{denied}},
		{[]string{"observe", "--pod", "db/pg"}, []string{allowed, denied}, nil},
		{[]string{"observe", "--namespace", "shop"}, []string{allowed}, []string{denied}},
		{[]string{"observe", "--from-ip", "2001:db8::/32"}, []string{denied}, []string{allowed}},
		{[]string{"observe", "--from-label", "app=web"}, []string{allowed}, []string{denied}},
		{[]string{"observe", "--from-label", "reserved:world"}, []string{denied}, []string{allowed}},
		{[]string{"observe", "--from-workload", "Deployment/web"}, []string{allowed}, []string{denied}},
		{[]string{"observe", "--protocol", "tcp", "--to-port", "5432"}, []string{allowed, denied}, nil},
		{[]string{"observe", "--protocol", "udp"}, nil, []string{allowed, denied}},
		{[]string{"observe", "--tcp-flags", "SYN"}, []string{allowed}, []string{denied}},
		{[]string{"observe", "--node-name", "n1"}, []string{allowed, denied}, nil},
		{[]string{"observe", "--node-name", "n2"}, nil, []string{allowed, denied}},
		{[]string{"observe", "-6"}, []string{denied}, []string{allowed}},
		{[]string{"observe", "--not", "--verdict", "DROPPED"}, []string{allowed}, []string{denied}},
		{[]string{"observe", "--last", "1"}, []string{denied}, []string{allowed}},
		{[]string{"observe", "--first", "1"}, []string{allowed}, []string{denied}},
		{[]string{"observe", "-o", "dict"}, []string{"SOURCE: " + allowed}, nil},
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
	if out, err := run("observe", "--http-method", "GET"); err == nil || !strings.Contains(out, "http_method") {
		t.Errorf("a filter that Weir does not have: %v: %s", err, out)
	}

	out, err := s.cli(t.Context(), t, "observe", "--verdict", "DROPPED", "-o", "json").Output()
	var line struct {
		Flow struct {
			Verdict         string                   `json:"verdict"`
			IngressDeniedBy []map[string]string      `json:"ingress_denied_by"`
			Extensions      struct{ Value Decision } `json:"extensions"`
		} `json:"flow"`
	}
	if err != nil || json.Unmarshal(bytes.TrimSpace(out), &line) != nil || line.Flow.Verdict != "DROPPED" || len(line.Flow.IngressDeniedBy) != 1 || line.Flow.IngressDeniedBy[0]["name"] != "clients" ||
		line.Flow.Extensions.Value.Rule == nil || line.Flow.Extensions.Value.Rule.Kind != "default-deny" {
		t.Errorf("JSON: %v: %s", err, out)
	}
}

// The hubble CLI follows.
func TestCLIFollows(t *testing.T) {
	needCLI(t)
	t.Parallel()
	s := newTestServer(t)
	s.record(1, 1)
	s.Records.Flush()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := s.cli(ctx, t, "observe", "--follow", "--last", "1", "-o", "json")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for port := uint16(1); port < 4; port++ {
		if !lines.Scan() {
			t.Fatalf("port %d: it ended: %v", port, lines.Err())
		}
		var line struct {
			Flow struct {
				L4 struct {
					TCP struct {
						SourcePort uint16 `json:"source_port"`
					}
				} `json:"l4"`
			} `json:"flow"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Flow.L4.TCP.SourcePort != port {
			t.Errorf("port %d: %v: %s", port, err, lines.Bytes())
		}
		s.record(port+1, 1+int(port)) // once it has shown the one before
		s.Records.Flush()
	}
	cancel()
	if err := c.Wait(); err == nil {
		t.Error("it ended by itself")
	}
}
