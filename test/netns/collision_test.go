// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// TestSameSourcePort: sockets that share a source port, to a backend and to Services that lead
// there, are connections of their own, on every path.
func TestSameSourcePort(t *testing.T) { inBoth(t, testSameSourcePort) }

func testSameSourcePort(t *testing.T, fam family) {
	for name, dsr := range map[string]bool{"tunnel": false, "dsr": true} {
		if !plays(t, fam, either(dsr)) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, fam)
			f.cluster.Settings.ConnectTime, f.cluster.Settings.DSR = model.ConnectTimeDisabled, dsr
			f.service("near", "10.96.0.1", 30001, f.b)
			f.service("near2", "10.96.0.2", 30002, f.b)
			f.service("far", "10.96.0.3", 30003, f.c)
			f.service("far2", "10.96.0.4", 30004, f.c)
			f.apply()
			port := 41000
			for _, nw := range networks {
				for _, c := range []struct {
					what string
					from *worker
					src  string
					to   []string
				}{
					{"pod, same node", f.a.worker, "10.244.1.2", []string{"10.96.0.1:80", "10.96.0.2:80", f.b.at("8080"), "172.30.0.8:30001"}},
					{"pod, other node", f.a.worker, "10.244.1.2", []string{f.c.at("8080"), "10.96.0.3:80", "10.96.0.4:80", "172.30.0.9:30003"}},
					{"host, same node", f.n1.worker, "172.30.0.8", []string{"10.96.0.1:80", f.b.at("8080"), "10.96.0.2:80"}},
					{"host, other node", f.n1.worker, "172.30.0.8", []string{"10.96.0.3:80", "10.96.0.4:80", f.c.at("8080")}},
					{"outside, local backend", f.client.worker, "172.30.0.55", []string{"172.30.0.8:30001", "172.30.0.8:30002"}},
					{"outside, handed on", f.client.worker, "172.30.0.55", []string{"172.30.0.8:30003", "172.30.0.8:30004", "172.30.0.9:30003"}},
				} {
					port++
					for i, to := range c.to {
						a := c.from.call(request{Op: "open", Net: nw, Addr: to, From: fmt.Sprintf("%s:%d", c.src, port), ID: port*10 + i, Shared: true})
						if a.Err != "" {
							t.Errorf("%s %s: %s with source port %d: %s", nw, c.what, to, port, a.Err)
						}
					}
					for i, to := range c.to {
						if a := c.from.call(request{Op: "talk", ID: port*10 + i}); a.Err != "" {
							t.Errorf("%s %s: %s, once all are open: %s", nw, c.what, to, a.Err)
						}
					}
				}
			}
		})
	}
}
