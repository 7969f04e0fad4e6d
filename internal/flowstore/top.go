// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"context"
	"strings"

	"github.com/weir-net/weir/internal/flows"
)

// noPod is the end of a sum that is no pod.
const noPod = "(no pod)"

// name is a workload as sums have it: "namespace/web" of "Deployment web", and the namespace alone
// where records do not say whose pods they are about.
func (w Workload) name() string {
	_, name, _ := strings.Cut(w.Name, " ")
	switch {
	case w.Namespace == "":
		return noPod
	case name == "":
		return w.Namespace
	}
	return w.Namespace + "/" + name
}

// Top returns the n largest pairs of workloads, ports and verdicts of the records that a query
// wants: by roll-ups where it is about time, verdict and namespaces alone, else of all its records.
// Of connections between two nodes those of one count: of the node's side that has seen more.
// beyond are records of more pairs than pairsMost.
func (s *Store) Top(ctx context.Context, q Query, n int) (top []flows.Sum, beyond uint64, err error) {
	if err := q.Check(); err != nil {
		return nil, 0, err
	}
	sums := map[flows.Sum]*[sides]Sum{}
	add := func(k flows.Sum, at side, sum Sum) {
		if sums[k] == nil {
			if len(sums) >= pairsMost {
				beyond += sum.Records
				return
			}
			sums[k] = &[sides]Sum{}
		}
		sums[k][at].add(sum)
	}
	keyOf := func(from, to Workload, o *outcome, port uint16) flows.Sum {
		k := flows.Sum{From: from.name(), To: to.name(), Protocol: o.Protocol, Port: port, Verdict: o.Verdict}
		if o.Verdict != flows.Allowed && o.Rule.Kind != "" {
			k.Rule = o.Rule.String()
		}
		return k
	}
	if isSpace(q.From) && isSpace(q.To) && q.Policy == "" && len(q.Namespaces) == 0 {
		err = s.sums(ctx, q.Since, q.Until, (*segment).readPairs, func(u *rollup) {
			for p, sum := range u.pairs {
				from, to, o := u.workloads[p.From], u.workloads[p.To], &u.outcomes[p.Outcome]
				if (q.From == "" || from.Namespace == q.From) && (q.To == "" || to.Namespace == q.To) && (!q.Denied || o.Verdict != flows.Allowed) {
					add(keyOf(from, to, o, p.Port), o.Side, sum)
				}
			}
		})
	} else {
		err = s.Each(ctx, q, func(f *flows.Flow) bool {
			o := outcome{Verdict: f.Verdict, Protocol: f.Protocol, Side: sideOf(f.Ingress, f.Egress)}
			if f.Rule != nil {
				o.Rule = *f.Rule
			}
			from, to := Workload{f.Source.Namespace, f.Source.Workload}, Workload{f.Destination.Namespace, f.Destination.Workload}
			add(keyOf(from, to, &o, f.Destination.Port), o.Side, Sum{Records: uint64(max(f.Records, 1)), Packets: f.Sent.Packets + f.Received.Packets, Bytes: f.Sent.Bytes + f.Received.Bytes})
			return true
		})
	}
	out := make([]flows.Sum, 0, len(sums))
	for k, of := range sums {
		sum := most(of)
		k.Packets, k.Bytes = sum.Packets, sum.Bytes
		out = append(out, k)
	}
	return flows.Largest(out, n, q.Denied), beyond, err
}

// isSpace is true for a namespace, and for all.
func isSpace(of string) bool { return !strings.Contains(of, "/") && !isNetwork(of) }
