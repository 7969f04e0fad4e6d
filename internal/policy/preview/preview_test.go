// SPDX-License-Identifier: Apache-2.0

package preview_test

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/policy/objects"
	"github.com/weir-net/weir/internal/policy/preview"
)

const small = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {kubernetes.io/metadata.name: a}}}
- {apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 172.31.1.1}]}}
- {apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 172.31.1.2}]}}
- {apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.0.0.0/16}}
`

// try says what a file does to records, in a cluster of these objects in addition to the small one.
func try(t *testing.T, more, file string, records ...*flows.Flow) *preview.Report {
	t.Helper()
	all, err := deploy.Parse([]byte(small + "---" + more))
	if err != nil {
		t.Fatal(err)
	}
	c, err := objects.FromObjects(all)
	if err != nil {
		t.Fatal(err)
	}
	x := c.Try()
	applied, err := objects.Parse("file", []byte(file), "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range applied {
		if _, err := x.Apply(u); err != nil {
			t.Fatal(err)
		}
	}
	before, after := c.Now(), x.Model()
	return preview.Run(before, after, questions(before, preview.LooksAtSources(before, after), records)).Report()
}

// record is one of a connection from pod a/NAME to a/srv, port 80.
func record(name string, change func(*flows.Flow)) *flows.Flow {
	f := &flows.Flow{Start: began, End: began.Add(time.Second), Node: "n1", Verdict: flows.Allowed, Protocol: "tcp", Return: "local",
		Source:      flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Port: 40000, Namespace: "a", Pod: name, Workload: "Deployment " + name, Node: "n1", Labels: map[string]string{"app": name}},
		Destination: flows.Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80, Namespace: "a", Pod: "srv", Node: "n1", Labels: map[string]string{"app": "srv"}},
		Egress:      &events.End{}, Ingress: &events.End{}, Sent: flows.Counters{Packets: 3, Bytes: 300}}
	if change != nil {
		change(f)
	}
	return f
}

var began = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

const onlyCli = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: only}, spec: {podSelector: {matchLabels: {app: srv}}, ingress: [{from: [{podSelector: {matchLabels: {app: cli}}}]}]}}`

// A pod that had other labels, or an address that was another pod's, counts as what it was then.
func TestLabelsOfTheirTime(t *testing.T) {
	t.Parallel()
	later := record("cli", func(f *flows.Flow) {
		f.Start, f.End = f.Start.Add(time.Hour), f.End.Add(time.Hour)
		f.Source.Labels = map[string]string{"app": "other"}
	})
	reused := record("bad", func(f *flows.Flow) { f.Start, f.End = f.Start.Add(2*time.Hour), f.End.Add(2*time.Hour) })
	moved := record("cli", func(f *flows.Flow) { f.Source.Address = netip.MustParseAddr("10.0.0.3") })
	r := try(t, "", onlyCli, record("cli", nil), later, reused, moved)
	if len(r.Denied) != 2 || r.Unchanged != 2 || len(r.Unknown) != 0 || r.Flows != 4 {
		t.Errorf("%+v", r)
	}
	for _, g := range r.Denied {
		if g.End != "ingress" || g.Rule.Kind != "default-deny" || g.Recorded != flows.Allowed {
			t.Errorf("%+v", g)
		}
	}
}

// Outside addresses are one side of a group, nodes are named; a pod's own node gets through, and
// where that is open it is said so.
func TestSides(t *testing.T) {
	t.Parallel()
	from := func(addr, back string) *flows.Flow {
		return record("", func(f *flows.Flow) {
			f.Source, f.Egress, f.Return = flows.Peer{Address: netip.MustParseAddr(addr), Port: 4}, nil, back
		})
	}
	r := try(t, "", onlyCli, from("192.0.2.1", "direct"), from("192.0.2.2", "direct"), from("172.31.1.2", "direct"), from("172.31.1.1", "stack"), from("192.0.2.3", "stack"), from("10.0.9.9", "vxlan"))
	if len(r.Denied) != 2 || r.Denied[0].Flows != 2 || r.Denied[0].From.Of != 2 || r.Denied[1].From.Node != "n2" || r.Unchanged != 1 {
		t.Errorf("denied: %+v", r.Denied)
	}
	why := map[string]bool{}
	for _, g := range r.Unknown {
		why[g.Why] = true
	}
	if len(why) != 2 || !why[preview.LackHost] || !why[preview.LackPod] {
		t.Errorf("unknown: %+v", r.Unknown)
	}
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Flows that would be denied: 3", "2 outside (192.0.2.1, 192.0.2.2) → a/Pod srv tcp:80", "1 node n2 → a/Pod srv", "ingress by default-deny a/only", "not known: " + preview.LackHost,
		"6 flows in 0 records: 3 would be denied, 0 allowed, 2 are not known, 1 unchanged"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
}

// What was decided otherwise when it was recorded is told apart from what the files change.
func TestOtherwise(t *testing.T) {
	t.Parallel()
	denied := record("bad", func(f *flows.Flow) {
		f.Verdict, f.Reason, f.Sent.Packets, f.Ingress = flows.Denied, "POLICY_INGRESS", 4, &events.End{Rule: &events.Rule{Kind: "default-deny"}}
	})
	r := try(t, "", onlyCli, denied, record("cli", nil))
	if len(r.Denied) != 1 || r.Denied[0].Recorded != flows.Denied || r.Denied[0].Flows != 4 || len(r.Otherwise) != 1 || r.Otherwise[0].Recorded != flows.Denied || r.Unchanged != 1 {
		t.Errorf("%+v", r)
	}
	// By a policy of now that the files leave as it is: nothing changes, and it is said.
	r = try(t, strings.Replace(onlyCli, "name: only", "name: before, namespace: a", 1), strings.Replace(onlyCli, "name: only", "name: second", 1), record("bad", nil))
	if len(r.Denied)+len(r.Allowed)+len(r.Unknown) != 0 || r.Unchanged != 1 || len(r.Otherwise) != 1 || r.Otherwise[0].End != "ingress" {
		t.Errorf("%+v", r)
	}
}

// Where a rule asks for the source port and the record sums up tries, it is not known; a rule that
// decides before it leaves no doubt.
func TestSourcePorts(t *testing.T) {
	t.Parallel()
	file := func(first string) string {
		return `{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: p}, spec: {selector: app == 'srv', ingress: [` + first + `{action: Deny, protocol: TCP, source: {ports: [40000]}}, {action: Allow}]}}`
	}
	tries := record("cli", func(f *flows.Flow) { f.Verdict, f.Reason, f.Sent.Packets = flows.Denied, "POLICY_INGRESS", 3 })
	r := try(t, "", file(""), record("cli", nil), record("cli", func(f *flows.Flow) { f.Source.Port++ }), tries)
	if len(r.Denied) != 1 || r.Denied[0].Flows != 1 || r.Unchanged != 1 || len(r.Unknown) != 1 || r.Unknown[0].Why != preview.LackSource {
		t.Errorf("%+v", r)
	}
	if r = try(t, "", file("{action: Deny, protocol: TCP, destination: {ports: [80]}},"), tries); len(r.Denied) != 1 || len(r.Unknown) != 0 {
		t.Errorf("%+v", r)
	}
}

// A connection to an address that a domain name led to counts by the name that its record has; what
// another name would say is not known.
func TestDomainNames(t *testing.T) {
	t.Parallel()
	file := func(domains string) string {
		return `{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: p}, spec: {types: [Egress], egress: [{action: Allow, destination: {domains: [` + domains + `]}}]}}`
	}
	to := func(domain string) *flows.Flow {
		return record("cli", func(f *flows.Flow) {
			f.Destination, f.Ingress = flows.Peer{Address: netip.MustParseAddr("192.0.2.7"), Port: 443}, nil
			f.Egress.Domain = domain
		})
	}
	for _, c := range []struct {
		before, after, recorded    string
		denied, unknown, unchanged int
	}{
		{`"*.b.com"`, `"*.com"`, "*.b.com", 0, 0, 1},
		{`a.com`, `"*.com"`, "a.com", 0, 0, 1},
		{`"*.com"`, `a.com`, "*.com", 0, 1, 0},
		{`"*.com"`, `a.com`, "b.com", 0, 1, 0}, // the address may be one of a.com, too
		{`"*.com"`, `""`, "*.com", 1, 0, 0},
		{`"*.com"`, `"*.com", x.com`, "*.com", 0, 0, 1},
	} {
		after := file(c.after)
		if c.after == `""` {
			after = `{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: p}, spec: {types: [Egress], egress: [{action: Allow, destination: {nets: [198.51.100.0/24]}}]}}`
		}
		r := try(t, strings.Replace(file(c.before), "name: p", "name: p, namespace: a", 1), after, to(c.recorded))
		unknown := 0
		for _, g := range r.Unknown {
			if unknown++; g.Why != preview.LackDomains {
				t.Errorf("%+v: %s", c, g.Why)
			}
		}
		denied := len(r.Denied)
		if denied != c.denied || unknown != c.unknown || r.Unchanged != uint64(c.unchanged) {
			t.Errorf("%+v: %d denied, %d unknown, %d unchanged", c, denied, unknown, r.Unchanged)
		}
	}
}

// Where a policy for a host endpoint changes, what passes that node's interfaces is not known.
func TestHostEndpoints(t *testing.T) {
	t.Parallel()
	host := `{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {role: node}}, spec: {node: n1, interfaceName: eth0}}`
	policy := `{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: g}, spec: {selector: role == 'node', ingress: [{action: Deny}]}}`
	outside := record("", func(f *flows.Flow) {
		f.Source, f.Egress, f.Return = flows.Peer{Address: netip.MustParseAddr("192.0.2.1"), Port: 4}, nil, "direct"
	})
	elsewhere := record("", func(f *flows.Flow) {
		f.Source, f.Egress, f.Return, f.Node, f.Destination.Node = outside.Source, nil, "direct", "n2", "n2"
	})
	r := try(t, host, policy, outside, elsewhere, record("cli", nil))
	if len(r.Unknown) != 1 || r.Unknown[0].Flows != 1 || r.Unknown[0].Why != preview.LackEndpoints || r.Unchanged != 2 {
		t.Errorf("%+v", r)
	}
}
