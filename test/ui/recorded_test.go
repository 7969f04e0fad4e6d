// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/ui"
	why "github.com/weir-net/weir/internal/why/ask"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// token is that of the tests' servers.
const token = "test-token"

// recorded is a source with a shop's records.
type recorded struct {
	mu     sync.Mutex
	flows  []*flows.Flow // by their end
	asked  []flows.Filter
	whyAsk ui.Question
	off    bool   // records are switched off
	stored bool   // the store answers
	odd    string // what a workload and a policy are called
}

func (r *recorded) Records(_ context.Context, f flows.Filter, most int) (*ask.Found, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, f)
	if r.off {
		return &ask.Found{Nodes: []ask.Node{{Name: "worker1", Err: fmt.Errorf("flows are not accounted for: FelixConfiguration spec.flowLogsLocalReporter")}}}, nil
	}
	found := &ask.Found{Nodes: []ask.Node{
		{Name: "worker1", Status: &flows.Status{Node: "worker1", Interval: time.Second, Lost: map[string]uint64{"old": 7}}},
		{Name: "worker2", Status: &flows.Status{Node: "worker2", Interval: time.Second}},
		{Name: "worker3", Err: fmt.Errorf("node worker3: no agent answers on the node")},
	}}
	if r.stored {
		found = &ask.Found{From: "the store of flow records", Oldest: time.Now().Add(-26 * time.Hour), More: true, Missing: []string{"records of that time that it does not have: 3 (full)"}}
	}
	for _, flow := range r.flows {
		if f.Wants(flow) {
			found.Flows = append(found.Flows, flow)
		}
	}
	if beyond := len(found.Flows) - most; beyond > 0 {
		found.Flows, found.Left = found.Flows[beyond:], beyond
	}
	return found, nil
}

// add records one more flow, which ends now.
func (r *recorded) add(f flows.Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.End = time.Now().UTC()
	r.flows = append(r.flows, &f)
}

// filter is the one that was asked for last.
func (r *recorded) filter() flows.Filter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[len(r.asked)-1]
}

// whyAsked is the question that was asked last.
func (r *recorded) whyAsked() ui.Question {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.whyAsk
}

func (r *recorded) Cluster(context.Context) (*ui.Cluster, error) {
	now := time.Now()
	return &ui.Cluster{Components: []string{"weir-node 3/3 ready, 3 up to date", "weir-controller 1/1 ready"}, Problems: []string{"IPPool extra spec.cidr: covers the nodes"},
		Nodes: []ui.Node{
			{Name: "worker1", State: "ready", Ready: true, Dataplane: "eBPF", Address: "172.31.1.207", Version: "v1", Heartbeat: &now, Pods: 12, Services: 9, Policies: 3,
				Drops: []ui.Drop{{Reason: "POLICY_INGRESS", Rule: "default-deny db/pg-clients ingress", Packets: 4211}, {Reason: "NO_ROUTE", Packets: 3}}, Tables: []ui.Table{{Name: "weir_flows", Family: "ipv4", Percent: 62, Capacity: 512000}, {Name: "weir_policy", Percent: 3, Capacity: 262144}}, Problems: []string{}},
			{Name: "worker2", State: "degraded", Dataplane: "nftables", Address: "172.31.1.208", Version: "v1", Heartbeat: &now, Pods: 7, Services: 9, Policies: 3, Why: "Uplinks: eth1 is down",
				Drops: []ui.Drop{}, Tables: []ui.Table{}, Problems: []string{"Node worker2 conntrack = \"more than 90 % of 512000 entries\": new flows may be dropped"}},
			{Name: "worker3", State: "no agent", Why: "no agent has reported" + strings.TrimPrefix(r.odd, "crawler"), Drops: []ui.Drop{}, Tables: []ui.Table{}, Problems: []string{}},
		}}, nil
}

func (r *recorded) Policies(context.Context) (*ui.Policies, error) {
	order := func(n float64) *float64 { return &n }
	return &ui.Policies{Missing: []string{"GlobalNetworkPolicy: the right to list globalnetworkpolicies in group projectcalico.org is missing"}, Tiers: []ui.Tier{
		{Name: "security", Order: order(100), Pass: true, Known: true, Policies: []ui.Policy{
			{Kind: "GlobalNetworkPolicy", Name: "no-metadata", Order: order(1), Subject: "all pods", Types: []string{"Egress"}, Rules: []ui.Rule{
				{Detail: "egress[0]", Action: "Deny", Text: "action: Deny\ndestination:\n  nets: [169.254.169.254/32]"}, {Detail: "egress[1]", Action: "Pass", Text: "action: Pass"}}}}},
		{Name: "default", Order: order(1e6), Known: true, Policies: []ui.Policy{
			{Kind: "NetworkPolicy", Name: "db/pg-clients", Order: order(1000), Subject: `podSelector: {"matchLabels":{"app":"pg"}}`, Types: []string{"Ingress"}, Rules: []ui.Rule{
				{Detail: "ingress[0]", Action: "Allow", Text: "from:\n- namespaceSelector: {matchLabels: {name: shop}}\nports:\n- port: 5432"},
				{Detail: "ingress[1]", Action: "Allow", Text: "from:\n- ipBlock: {cidr: 192.0.2.0/24}"}}},
			{Kind: "NetworkPolicy", Name: "shop/" + r.odd, Order: order(1000), Subject: "all pods of namespace shop", Types: []string{"Egress"}, Rules: []ui.Rule{{Detail: "egress[0]", Action: "Allow", Text: "to: # " + r.odd}}}}},
	}}, nil
}

func (r *recorded) Why(_ context.Context, q ui.Question) (*why.Story, error) {
	r.mu.Lock()
	r.whyAsk = q
	r.mu.Unlock()
	if q.Source == "nobody" {
		return nil, fmt.Errorf("pod default/nobody: not found")
	}
	a, b := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.244.2.9")
	deny := nodestate.Rule{Kind: "default-deny", Name: "db/pg-clients", Detail: "ingress", Tier: "default"}
	s := &why.Story{Source: "pod " + q.Source, Target: "Service db/pg", Request: whywire.Request{Source: a, Destination: b, Protocol: model.ProtocolTCP, Port: 5432}, Nodes: []whywire.Answer{
		{Node: "worker1", Plane: "eBPF", Packet: "tcp 10.244.1.5:50000 > 10.96.0.9:5432 S ttl=64",
			Service:  &whywire.Service{Name: "Service db/pg", Frontend: "10.96.0.9:5432/tcp", Where: whywire.AtConnect, Chosen: "10.244.2.9:5432", Backends: []whywire.Backend{{Address: "10.244.2.9:5432", Usable: true}}},
			Policies: []whywire.End{{Direction: "egress", Peer: b, Explanation: policy.Explanation{Pod: model.Name{Namespace: "shop", Name: "cart"}, Allow: true}}},
			Program:  whywire.Program{Name: "weir_from_workload", Interface: "cali0c3b84a0ec8", Tag: "2ff9", Same: true},
			Outcome:  whywire.Outcome{Verdict: whywire.SentOn, Text: "direct, to node worker2", Path: "direct", Packet: "tcp 10.244.1.5:50000 > 10.244.2.9:5432 S ttl=63"}},
		{Node: "worker2", Plane: "eBPF", Packet: "tcp 10.244.1.5:50000 > 10.244.2.9:5432 S ttl=63",
			Policies: []whywire.End{{Direction: "ingress", Peer: a, Explanation: policy.Explanation{Pod: model.Name{Namespace: "db", Name: "pg-0"}, Isolated: true, Known: true, Rule: deny,
				Tiers: []policy.ExplainedTier{{Name: "default", End: policy.EndDefaultDeny, Policies: []policy.ExplainedPolicy{{Kind: "NetworkPolicy", Name: "db/pg-clients",
					Rules: []policy.ExplainedRule{{Detail: "ingress[0]", Action: "Allow", Why: policy.NotPeer}}}}}}}}},
			Program: whywire.Program{Name: "weir_from_uplink", Interface: "eth0", Tag: "d51a", Same: true},
			Outcome: whywire.Outcome{Verdict: whywire.Dropped, Text: "denied by ingress policy", Reason: "POLICY_INGRESS", Rule: deny.String()}},
	}}
	s.Conclude()
	return s, nil
}

// markup is what a name would be in a page that took names for more than text.
const markup = `<img src=x onerror="window.hit=1"><script>window.hit=1</script>`

// app is a workload of the shop.
func app(namespace, name string, n int) flows.Peer {
	return flows.Peer{Address: netip.AddrFrom4([4]byte{10, 244, byte(len(name)), byte(n)}), Namespace: namespace, Pod: fmt.Sprintf("%s-6b7f9c-%04d", name, n), Workload: "Deployment " + name, Node: fmt.Sprintf("worker%d", n%2+1)}
}

var (
	clients = &events.Rule{Kind: "NetworkPolicy", Name: "db/pg-clients", Tier: "default", Detail: "ingress[0]"}
	denied  = &events.Rule{Kind: "default-deny", Name: "db/pg-clients", Tier: "default", Detail: "ingress"}
)

// connection is a record of some seconds ago.
func connection(now time.Time, ago time.Duration, from, to flows.Peer, port uint16, service string, bytes uint64) flows.Flow {
	from.Port, to.Port = 40000+uint16(ago/time.Millisecond%9999), port
	f := flows.Flow{Start: now.Add(-ago - time.Second).UTC(), End: now.Add(-ago).UTC(), Node: from.Node, Verdict: flows.Allowed, Protocol: "tcp", Source: from, Destination: to, Service: service, Path: "direct",
		Sent: flows.Counters{Packets: 10, Bytes: bytes / 4}, Received: flows.Counters{Packets: 12, Bytes: bytes}, TCPFlags: "SYN ACK FIN", Ended: "closed"}
	if service != "" {
		f.Asked = fmt.Sprintf("10.96.0.%d:%d", len(service), port)
	}
	return f
}

// shop is a source with n records of eight workloads, the latest of some seconds ago; each 50th was
// denied.
func shop(n int) *recorded { return shopWith(n, "crawler") }

// shopWith is shop, in which a workload and a policy have a name.
func shopWith(n int, odd string) *recorded {
	r, now := &recorded{odd: odd}, time.Now()
	outside := flows.Peer{Address: netip.MustParseAddr("203.0.113.9")}
	talks := []struct {
		from, to string
		port     uint16
		bytes    uint64
	}{{"", "shop/web", 8080, 48_000}, {"shop/web", "shop/cart", 8080, 9_000}, {"shop/web", "shop/catalogue", 8080, 220_000}, {"shop/cart", "db/pg", 5432, 31_000}, {"shop/catalogue", "db/pg", 5432, 900_000},
		{"shop/cart", "pay/gateway", 443, 5_000}, {"batch/report", "db/pg", 5432, 4_000_000}, {"monitoring/prometheus", "shop/web", 9090, 70_000}}
	for i := range n {
		talk := talks[i%len(talks)]
		peer := func(name string, n int) flows.Peer {
			ns, of, ok := strings.Cut(name, "/")
			if !ok {
				return outside
			}
			return app(ns, of, n)
		}
		f := connection(now, time.Duration(n-i)*5*time.Millisecond, peer(talk.from, i%3+1), peer(talk.to, i%2+1), talk.port, talk.to+" port http", talk.bytes)
		if strings.HasPrefix(talk.to, "db/") {
			f.Rule, f.Ingress = clients, &events.End{Rule: clients}
		}
		if i%50 == 49 {
			f.Source = app("batch", odd, i%3+1)
			f.Destination, f.Service, f.Asked = app("db", "pg", 1), "", ""
			f.Destination.Port, f.Verdict, f.Reason, f.Rule, f.Ingress = 5432, flows.Denied, "POLICY_INGRESS", denied, &events.End{Rule: denied}
			f.Sent, f.Received, f.Ended, f.TCPFlags = flows.Counters{Packets: 3}, flows.Counters{}, "", ""
		}
		r.flows = append(r.flows, &f)
	}
	return r
}

// city is a source with records between so many workloads, of so many pairs.
func city(workloads, pairs int) *recorded {
	r, now := &recorded{}, time.Now()
	at := func(i int) flows.Peer { return app(fmt.Sprintf("ns-%02d", i%25), fmt.Sprintf("app-%d", i/25), i%200+1) }
	for i := range pairs {
		from := i % workloads
		to := (from + 1 + i/workloads*37) % workloads
		f := connection(now, time.Duration(pairs-i)*time.Millisecond, at(from), at(to), 80, "", uint64(1+i%7)*10_000)
		if i%40 == 0 {
			f.Verdict, f.Rule, f.Reason = flows.Denied, denied, "POLICY_INGRESS"
		}
		r.flows = append(r.flows, &f)
	}
	slices.SortFunc(r.flows, func(a, b *flows.Flow) int { return a.End.Compare(b.End) })
	return r
}

// served serves the page with a source, and returns its address.
func served(t *testing.T, of ui.Source) string {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	address := "http://" + server.Listener.Addr().String()
	server.Config.Handler = ui.New(ui.Config{Origins: []string{address}, Access: ui.Token(token, of), Log: slog.New(slog.DiscardHandler)})
	server.Start()
	t.Cleanup(server.Close)
	return address
}
