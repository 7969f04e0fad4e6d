// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// isRefused fails the test unless the other side refuses: a time-out is another error.
func (w *worker) isRefused(network, addr string) {
	w.t.Helper()
	if a := w.get(network, addr); !strings.Contains(a.Err, "connection refused") {
		w.t.Errorf("%s -> %s %s: got %q (%s), want a refusal", w.name, network, addr, a.Reply, a.Err)
	}
}

// TestNoBackend: whoever asks a Service without endpoints is refused at once.
func TestNoBackend(t *testing.T) { inBoth(t, testNoBackend) }

func testNoBackend(t *testing.T, fam family) {
	for _, mode := range []model.ConnectTimeLB{model.ConnectTimeDisabled, model.ConnectTimeTCP} {
		t.Run(string(mode), func(t *testing.T) {
			f := newFixture(t, fam)
			f.cluster.Settings.ConnectTime = mode
			f.service("none", "10.96.0.3", 30003)
			// A question whose checksum was left to the device must not make the device write one
			// into the answer.
			run(t, "ip netns exec %s ethtool -K eth0 tx off", f.n2.netns)
			f.apply()
			for _, nw := range networks {
				f.a.isRefused(nw, "10.96.0.3:80")
				f.a.isRefused(nw, "172.30.0.8:30003")
				f.a.isRefused(nw, "172.30.0.9:30003")
				f.n1.isRefused(nw, "10.96.0.3:80")
				f.n1.isRefused(nw, "172.30.0.9:30003")
				f.client.isRefused(nw, "172.30.0.8:30003")
				f.client.isRefused(nw, "172.30.0.9:30003")
			}
		})
	}
}

// TestBackendsGo: a flow that loses its last backend is refused, a UDP one at its next datagram.
func TestBackendsGo(t *testing.T) { inBoth(t, testBackendsGo) }

func testBackendsGo(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("svc", "10.96.0.2", 30002, f.c)
	f.apply()
	for _, w := range []*worker{f.a.worker, f.client.worker} {
		addr := "10.96.0.2:80"
		if w == f.client.worker {
			addr = "172.30.0.8:30002"
		}
		if a := w.call(request{Op: "open", Net: "udp", Addr: addr, ID: 1}); a.Err != "" {
			t.Fatalf("%s: %s", w.name, a.Err)
		}
	}
	f.endpoints("svc")
	f.apply()
	for _, w := range []*worker{f.a.worker, f.client.worker} {
		if a := w.call(request{Op: "talk", ID: 1}); !strings.Contains(a.Err, "connection refused") {
			t.Errorf("%s: %q (%s), want a refusal", w.name, a.Reply, a.Err)
		}
	}
}

// TestPodGone: a TCP connection goes on while its backend has only left the Service, and is reset,
// by whichever way it came, when the pod is gone.
func TestPodGone(t *testing.T) { inBoth(t, testPodGone) }

func testPodGone(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("svc", "10.96.0.2", 30002, f.c)
	f.apply()
	asks := []struct {
		what string
		*worker
		addr string
	}{
		{"a pod elsewhere", f.a.worker, "10.96.0.2:80"}, {"a pod of the same node", f.d.worker, "10.96.0.2:80"}, {"a pod, without a Service", f.b.worker, f.c.at("8080")},
		{"a process of another node", f.n1.worker, "10.96.0.2:80"}, {"a client, by another node", f.client.worker, "172.30.0.8:30002"},
		{"a client, by the pod's node", f.client2.worker, "172.30.0.9:30002"},
	}
	for _, who := range asks {
		if a := who.call(request{Op: "open", Net: "tcp", Addr: who.addr, ID: 1}); a.Err != "" {
			t.Fatalf("%s: %s", who.what, a.Err)
		}
	}
	f.endpoints("svc", f.d)
	f.apply()
	for _, who := range asks {
		if a := who.call(request{Op: "talk", ID: 1}); a.Err != "" || a.Reply[:1] != "c" {
			t.Errorf("%s: %q (%s) from a backend that left the Service", who.what, a.Reply, a.Err)
		}
	}
	run(t, "ip -n %s link del %s", f.n2.netns, f.c.local.Interface)
	f.n2.pods = slices.DeleteFunc(f.n2.pods, func(p *pod) bool { return p == f.c })
	f.cluster.Pods.Delete(f.c.obj.Name)
	f.apply()
	for _, who := range asks {
		if a := who.call(request{Op: "talk", ID: 1}); !strings.Contains(a.Err, "connection reset") {
			t.Errorf("%s: %q (%s) from a pod that is gone, want a reset", who.what, a.Reply, a.Err)
		}
	}
	for _, who := range asks {
		if who.worker != f.b.worker {
			who.reaches("d", "tcp", who.addr)
		}
	}
}
