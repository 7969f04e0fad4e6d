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
