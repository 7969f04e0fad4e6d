// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strings"
	"testing"
)

// TestAffinityOutlivesTheDriver: a client of a Service with session affinity comes to the same
// backend while no process of ours is there, and when the next one has taken over, whoever chose:
// the socket, the pod's hook or the uplink's.
func TestAffinityOutlivesTheDriver(t *testing.T) { inBoth(t, affinityOutlivesTheDriver) }

func affinityOutlivesTheDriver(t *testing.T, fam family) {
	for _, mode := range connectModes {
		if !plays(t, fam, one(connectModes, mode)) {
			continue
		}
		t.Run(string(mode), func(t *testing.T) {
			f := newFixture(t, fam)
			f.cluster.Settings.ConnectTime = mode
			f.service("svc", "10.96.0.1", 30001, f.b, f.c, f.d).Affinity = 3600
			f.apply()
			type asker struct {
				w        *worker
				nw, addr string
				source   string // that the backend sees; "" = whichever
			}
			var askers []asker
			for _, nw := range networks {
				askers = append(askers, asker{f.a.worker, nw, "10.96.0.1:80", ""}, asker{f.n1.worker, nw, "10.96.0.1:80", ""},
					asker{f.client.worker, nw, "172.30.0.8:30001", "172.30.0.55"}, asker{f.client2.worker, nw, "172.30.0.9:30001", "172.30.0.62"})
			}
			first := map[asker]string{}
			same := func(when string) {
				t.Helper()
				for _, k := range askers {
					for range 6 { // one of three backends is chosen each time by chance in 1 of 243 cases
						a := k.w.get(k.nw, k.addr)
						backend, from, _ := strings.Cut(a.Reply, " ")
						if a.Err != "" {
							t.Fatalf("%s: %s -> %s %s: %s", when, k.w.name, k.nw, k.addr, a.Err)
						}
						if k.source != "" && !strings.HasPrefix(from, k.source+":") {
							t.Errorf("%s: %s -> %s %s comes from %s", when, k.w.name, k.nw, k.addr, from)
						}
						if first[k] == "" {
							first[k] = backend
						}
						if backend != first[k] {
							t.Fatalf("%s: %s -> %s %s comes to %s, was at %s", when, k.w.name, k.nw, k.addr, backend, first[k])
						}
					}
				}
			}
			same("at first")
			for _, n := range f.nodes {
				n.driver.kill()
			}
			same("while no process is there")
			for _, n := range f.nodes {
				n.startAgain(t)
			}
			same("after the restart")
			// Until the backend is gone.
			f.endpoints("svc", f.c)
			f.apply()
			for _, k := range askers {
				if a := k.w.get(k.nw, k.addr); !strings.HasPrefix(a.Reply, "c ") {
					t.Errorf("%s -> %s %s: %q (%s), want c, the only one left", k.w.name, k.nw, k.addr, a.Reply, a.Err)
				}
			}
		})
	}
}
