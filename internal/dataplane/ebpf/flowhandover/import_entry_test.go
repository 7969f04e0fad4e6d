// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"testing"

	"github.com/weir-net/weir/internal/conntrack"
)

// TestInStack: what the node asks of its own addresses goes by the loopback device, and stays with
// connection tracking.
func TestInStack(t *testing.T) {
	const node, other = "172.30.0.8:40000", "172.30.0.8:20001"
	for name, c := range map[string]struct {
		e    conntrack.Entry
		want bool
	}{
		"node to its own node port":               {connection(node, "172.30.0.8:30001", other, "10.244.2.3:8080"), true},
		"the same, and the backend is here":       {connection(node, "172.30.0.8:30001", node, "10.244.1.2:8080"), true},
		"node to a node port at 127.0.0.1":        {connection("127.0.0.1:40000", "127.0.0.1:30001", other, "10.244.2.3:8080"), true},
		"node to itself":                          {connection(node, "172.30.0.8:80", node, "172.30.0.8:80"), false},
		"node to a Service":                       {connection(node, "10.96.0.1:80", other, "10.244.2.3:8080"), false},
		"node to a node port of another node":     {connection(node, "172.30.0.9:30001", node, "10.244.2.3:8080"), false},
		"client to a node port":                   {connection("172.30.0.55:50000", "172.30.0.8:30001", other, "10.244.2.3:8080"), false},
		"pod to a node port of its node":          {connection("10.244.1.2:40000", "172.30.0.8:30001", other, "10.244.2.3:8080"), false},
		"pod to a Service whose backend is there": {connection("10.244.1.2:40000", "10.96.0.1:80", "10.244.1.2:40000", "172.30.0.8:80"), false},
	} {
		if got := takerOf().InStack(c.e); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestOthersNAT: where another CNI plugin's network translates sources, what a pod sends out of the
// cluster is the stack's to carry, as the pod sends it, unless Weir translates its source.
func TestOthersNAT(t *testing.T) {
	const pod, node, outside = "10.244.1.2:40000", "172.30.0.8:40000", "192.0.2.1:443"
	for name, c := range map[string]struct {
		e, want  conntrack.Entry
		outgoing bool // Weir translates what the pod sends out of the cluster
		stack    bool
	}{
		"its source is translated":      {connection(pod, outside, node, outside), connection(pod, outside, pod, outside), false, true},
		"it is not":                     {connection(pod, outside, pod, outside), connection(pod, outside, pod, outside), false, true},
		"Weir translates it":            {connection(pod, outside, node, outside), connection(pod, outside, node, outside), true, false},
		"by a Service":                  {connection(pod, "10.96.0.1:80", node, "192.0.2.80:80"), connection(pod, "10.96.0.1:80", pod, "192.0.2.80:80"), false, true},
		"to the node":                   {connection(pod, "172.30.0.8:80", pod, "172.30.0.8:80"), connection(pod, "172.30.0.8:80", pod, "172.30.0.8:80"), false, false},
		"to a pod":                      {connection(pod, "10.244.2.3:80", pod, "10.244.2.3:80"), connection(pod, "10.244.2.3:80", pod, "10.244.2.3:80"), false, false},
		"to itself":                     {connection(pod, "10.96.0.1:80", node, pod), connection(pod, "10.96.0.1:80", node, pod), false, false},
		"from outside":                  {connection(outside, pod, outside, pod), connection(outside, pod, outside, pod), false, false},
		"from outside, to a node's own": {connection(outside, node, outside, node), connection(outside, node, outside, node), false, false},
	} {
		of := takerOf()
		of.State.Settings.Chained = true
		a := c.e.Orig.Src
		if v, ok := of.State.Addrs[a]; ok {
			v.NATOutgoing = c.outgoing
			of.State.Addrs[a] = v
		}
		got := of.BeforeOthersNAT(c.e)
		if got.Orig != c.want.Orig || got.Reply != c.want.Reply || of.leftToStack(got) != c.stack {
			t.Errorf("%s: %+v, left to the stack %v", name, got, of.leftToStack(got))
		}
		of.State.Settings.Chained = false
		if got := of.BeforeOthersNAT(c.e); got.Reply != c.e.Reply || of.leftToStack(got) {
			t.Errorf("%s, without another CNI plugin: %+v", name, got)
		}
	}
}
