// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/policy/preview"
)

// tried is a flow of which a preview says something.
type tried struct {
	way
	from, to string // as preview.Side names them; of an address outside, that
	port     int32
	protocol string
	works    bool // it is allowed at first
}

// soon waits until it gets through, or does not.
func (f *tried) soon(t *testing.T, works bool) {
	t.Helper()
	f.way.from.soon(t, f.way.to, works, f.args...)
}

// in finds the flow among groups.
func (f *tried) in(groups []preview.Group) bool {
	return slices.ContainsFunc(groups, func(g preview.Group) bool {
		from := g.From.String() == f.from || slices.ContainsFunc(g.From.Addresses, func(a netip.Addr) bool { return a.String() == f.from })
		return from && g.To.String() == f.to && g.Protocol == f.protocol && int32(g.Port) == f.port
	})
}

// recorded: is there a record of it?
func (f *tried) recorded(all []flows.Flow) bool {
	name := func(p flows.Peer) string {
		if p.Pod != "" {
			return p.Namespace + "/Pod " + p.Pod
		}
		for node, addr := range nodes {
			if p.Address.String() == addr {
				return "node " + node
			}
		}
		return p.Address.String()
	}
	return slices.ContainsFunc(all, func(r flows.Flow) bool {
		return name(r.Source) == f.from && name(r.Destination) == f.to && r.Protocol == f.protocol && int32(r.Destination.Port) == f.port && (r.Verdict == flows.Denied || r.Ingress != nil)
	})
}

// policiesTried tries policies on what nodes recorded, and puts them in force then: each flow does
// what was said. What is recommended lets through what was recorded, and nothing else.
func policiesTried(t *testing.T, b *base) {
	pod := func(name string) string { return b.ns + "/Pod " + name }
	var all []*tried
	add := func(from *place, name, to, at string, works bool, args ...string) {
		protocol, port := "tcp", int32(whoPort)
		if len(args) > 0 {
			protocol, port = "udp", udpPort
		}
		all = append(all, &tried{from.to(at, args...), name, pod(to), port, protocol, works})
	}
	for _, srv := range []struct {
		name, svc string
		at        *place
		nodePort  int32
		open      bool // to everybody; to cli1 and its own node it is in any case
	}{{"srv1", b.svc1, b.srv1, nodePort1, false}, {"srv2", b.svc2, b.srv2, nodePort2, true}} {
		add(b.cli1, pod("cli1"), srv.name, at(srv.svc, whoPort), true)
		add(b.cli2, pod("cli2"), srv.name, at(srv.at.addr, whoPort), srv.open)
		add(b.cli2, pod("cli2"), srv.name, at(srv.at.addr, udpPort), srv.open, "--udp")
		add(b.client(1), client1Addr, srv.name, at(cpAddr, srv.nodePort+nodeWho), srv.open)
		add(b.host("worker1", worker1Addr), "node worker1", srv.name, at(srv.at.addr, whoPort), true)
	}
	ever := map[*tried]bool{}
	eventually(t, 0, "records of all flows", func() error {
		for _, f := range all {
			f.soon(t, f.works)
			ever[f] = f.works
		}
		records, err := b.flows(t, "--to", b.ns)
		for _, f := range all {
			if err == nil && !f.recorded(records) {
				err = fmt.Errorf("none of %d is of %s → %s %s %d", len(records), f.from, f.to, f.protocol, f.port)
			}
		}
		return err
	})
	file := filepath.Join(t.TempDir(), "new.yaml")
	policies := fmt.Sprintf(`
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: recorded}, spec: {podSelector: {matchLabels: {pod: srv1}}, ingress: [{from: [{podSelector: {matchLabels: {pod: cli2}}}, {ipBlock: {cidr: %s/32}}], ports: [{port: %d}]}]}}
---
{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: second}, spec: {selector: pod == 'srv2', ingress: [{action: Allow, source: {selector: pod == 'cli1'}}, {action: Allow, source: {nets: [%s/32]}}]}}
`, client1Addr, whoPort, client1Addr)
	if err := os.WriteFile(file, []byte(policies), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := output(b.command(t.Context(), "exec", "client1", "--", filepath.Join(b.bin, "weir"), "policy", "preview", "-f", file, "-n", b.ns, "-o", "json"), "")
	var report preview.Report
	if err == nil || !strings.Contains(err.Error(), "exit status 2") {
		t.Fatalf("a preview of what denies flows ends with %v", err)
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, g := range report.Unknown {
		if g.To.Namespace == b.ns {
			t.Errorf("not known: %+v", g)
		}
	}
	b.mustKubectl(t, policies, "apply", "-n", b.ns, "-f", "-")
	t.Cleanup(func() {
		_, _ = b.kubectl("", "delete", "networkpolicies.projectcalico.org", "-n", b.ns, "second", "--ignore-not-found")
	})
	defer func() {
		if t.Failed() {
			t.Logf("the preview said, or what was recommended is:\n%s", out)
		}
	}()
	denied, allowed := 0, 0
	for _, f := range all {
		want := f.works
		switch {
		case f.in(report.Denied):
			want = false
			denied++
		case f.in(report.Allowed):
			want = true
			allowed++
		}
		f.soon(t, want)
		ever[f] = ever[f] || want
	}
	if denied < 4 || allowed < 2 {
		t.Errorf("%d flows are denied, %d allowed: too few change", denied, allowed)
	}
	eventually(t, 0, "what is recommended", func() error { // once all that worked was recorded
		if out, err = output(b.command(t.Context(), "exec", "client1", "--", filepath.Join(b.bin, "weir"), "policy", "recommend", "-n", b.ns), ""); err != nil {
			return err
		}
		records, err := b.flows(t, "--to", b.ns)
		for _, f := range all {
			if err == nil && ever[f] && !slices.ContainsFunc(records, func(r flows.Flow) bool { return r.Verdict == flows.Allowed && f.recorded([]flows.Flow{r}) }) {
				err = fmt.Errorf("no record of %s → %s", f.from, f.to)
			}
		}
		return err
	})
	b.mustKubectl(t, "", "delete", "networkpolicies.projectcalico.org", "-n", b.ns, "second")
	b.mustKubectl(t, out, "apply", "-f", "-")
	b.noPolicy(t, "recorded")
	b.cli1.soon(t, at(b.srv2.addr, echoPort), false) // which nobody asked for
	for _, f := range all {
		f.soon(t, ever[f])
	}
}
