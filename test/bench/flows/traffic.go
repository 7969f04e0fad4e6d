// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
)

// The cluster whose traffic is made up.
const (
	namespaces = 100
	podsEach   = 10 // of a workload
	nodes      = 200
)

// workload has pods, a Service and policies.
type workload struct {
	namespace, service, asked string
	port                      uint16
	pods                      []flows.Peer
	allow, deny               *events.End
}

// traffic makes records: pairs of workloads by Zipf's law, a third of the clients from random
// addresses outside, random source ports, 3 % denied, sizes and times by lognormal distributions.
type traffic struct {
	rand      *rand.Rand
	workloads []workload
	from, to  *rand.Zipf
	at        time.Time     // of the latest record
	every     time.Duration // between two records
}

func newTraffic(workloads int, began time.Time, every time.Duration) *traffic {
	r := rand.New(rand.NewPCG(1, 2))
	t := &traffic{rand: r, at: began, every: every, from: rand.NewZipf(r, 1.1, 1, uint64(workloads-1)), to: rand.NewZipf(r, 1.1, 1, uint64(workloads-1))}
	for i := range workloads {
		w := workload{namespace: fmt.Sprintf("namespace-%d", i%namespaces), port: uint16(8000 + r.IntN(40))}
		name := fmt.Sprintf("app-%d", i)
		w.service = fmt.Sprintf("%s/%s port http", w.namespace, name)
		w.asked = fmt.Sprintf("10.96.%d.%d:80", i/250, i%250)
		rule := func(detail string) *events.End {
			return &events.End{Rule: &events.Rule{Kind: "NetworkPolicy", Name: w.namespace + "/clients-of-" + name, Tier: "default", Detail: detail}}
		}
		w.allow, w.deny = rule(fmt.Sprintf("ingress[%d]", r.IntN(4))), rule("")
		w.deny.Rule.Kind = "default-deny"
		labels := map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": fmt.Sprintf("product-%d", i%30), "pod-template-hash": fmt.Sprintf("%010x", r.Uint64()>>24)}
		for range podsEach {
			n := r.IntN(nodes)
			w.pods = append(w.pods, flows.Peer{Address: netip.AddrFrom4([4]byte{10, byte(64 + n>>8), byte(n), byte(2 + r.IntN(250))}), Namespace: w.namespace, Workload: "Deployment " + name,
				Pod: fmt.Sprintf("%s-%s-%05x", name, labels["pod-template-hash"], r.IntN(1<<20)), Labels: labels, Node: fmt.Sprintf("node-%d", n)})
		}
		t.workloads = append(t.workloads, w)
	}
	return t
}

// lognormal with this median.
func (t *traffic) lognormal(median, sigma float64) uint64 {
	return uint64(median * math.Exp(sigma*t.rand.NormFloat64()))
}

// next is a record of one of the nodes that have seen a connection.
func (t *traffic) next() *flows.Flow {
	r := t.rand
	t.at = t.at.Add(t.every)
	w := &t.workloads[t.to.Uint64()]
	f := &flows.Flow{End: t.at, Verdict: flows.Allowed, Protocol: "tcp", Ended: "closed", Destination: w.pods[r.IntN(podsEach)], TCPFlags: "SYN ACK FIN", Path: "local", Return: "vxlan"}
	f.Start = f.End.Add(-time.Duration(t.lognormal(80, 1.5)) * time.Millisecond)
	f.Destination.Port = w.port
	f.Node = f.Destination.Node
	if r.IntN(3) == 0 {
		f.Source = flows.Peer{Address: netip.AddrFrom4([4]byte{byte(11 + r.IntN(200)), byte(r.IntN(256)), byte(r.IntN(256)), byte(r.IntN(256))})}
		f.Ingress, f.Return = w.allow, "direct"
	} else {
		f.Source = t.workloads[t.from.Uint64()].pods[r.IntN(podsEach)]
		f.Service, f.Asked = w.service, w.asked
		if r.IntN(2) == 0 { // the client's node
			f.Node, f.Path, f.Return, f.Egress = f.Source.Node, "vxlan", "local", &events.End{}
		} else {
			f.Ingress = w.allow
		}
	}
	f.Source.Port = uint16(32768 + r.IntN(28232))
	if f.Ingress != nil {
		f.Rule = f.Ingress.Rule
	}
	if f.Ingress != nil && r.IntN(100) < 6 {
		f.Verdict, f.Reason, f.Ingress, f.Rule, f.Ended, f.TCPFlags, f.Path, f.Return = flows.Denied, "POLICY_INGRESS", w.deny, w.deny.Rule, "", "", "", ""
		f.Sent.Packets = 1 + t.lognormal(1, 1)
		return f
	}
	if r.IntN(20) == 0 {
		f.Ended, f.TCPFlags = "", "SYN ACK"
	}
	f.Handshake = uint32(50 + t.lognormal(250, 1))
	f.Sent.Packets, f.Sent.Bytes = 4+t.lognormal(4, 0.8), 250+t.lognormal(700, 1)
	f.Received.Packets, f.Received.Bytes = 3+t.lognormal(4, 1), 250+t.lognormal(3000, 1.5)
	return f
}
