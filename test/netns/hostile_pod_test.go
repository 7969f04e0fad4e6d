// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// TestHostileDetour: a pod whom policy keeps from another one reaches it by no Service, node port,
// external address or other node either.
func TestHostileDetour(t *testing.T) { inBoth(t, testHostileDetour) }

func testHostileDetour(t *testing.T, fam family) {
	record(t, "a pod gets round a policy by a Service, a node port, an external address or another node", hostile.Pod, fam)
	for _, mode := range []model.ConnectTimeLB{model.ConnectTimeEnabled, model.ConnectTimeDisabled} {
		t.Run(string(mode), func(t *testing.T) {
			f := newFixture(t, fam)
			f.cluster.Settings.ConnectTime = mode
			f.service("near", "10.96.0.1", 30001, f.b)
			f.service("far", "10.96.0.2", 30002, f.c)
			for name, at := range map[string]string{"near": "172.30.0.201", "far": "172.30.0.202"} {
				f.cluster.Services[model.Name{Namespace: "default", Name: name}].ExternalIPs = f.pairOf(netip.MustParseAddr(at))
			}
			// Each lets nobody in but d.
			for _, app := range []string{"b", "c"} {
				p := allow(app, model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("d")}})
				f.cluster.Policies[p.ID()] = p
			}
			f.apply()
			for _, nw := range networks {
				for _, at := range []string{f.b.at("8080"), "10.96.0.1:80", "172.30.0.8:30001", "172.30.0.9:30001", "172.30.0.201:80"} {
					f.a.refused(nw, at)
				}
				for _, at := range []string{f.c.at("8080"), "10.96.0.2:80", "172.30.0.8:30002", "172.30.0.9:30002", "172.30.0.202:80"} {
					f.a.refused(nw, at)
				}
				for name, at := range map[string]string{"b": "10.96.0.1:80", "c": "172.30.0.9:30002"} {
					f.d.reaches(name, nw, at)
				}
			}
		})
	}
}

// TestHostileKeptFlow: what a pod has open when a policy comes that denies it ends, whatever it
// is: a datagram's flow and a connection, to a pod of its node and of another, straight and by a
// Service.
func TestHostileKeptFlow(t *testing.T) { inBoth(t, testHostileKeptFlow) }

func testHostileKeptFlow(t *testing.T, fam family) {
	record(t, "a pod goes on with a flow that was open before a policy denied it", hostile.Pod, fam)
	f := newFixture(t, fam)
	f.service("near", "10.96.0.1", 0, f.b)
	f.service("far", "10.96.0.2", 0, f.c)
	f.apply()
	id := 0
	for _, nw := range networks {
		for _, at := range []string{f.b.at("8080"), f.c.at("8080"), "10.96.0.1:80", "10.96.0.2:80"} {
			for _, p := range []*pod{f.a, f.d} {
				if a := p.call(request{Op: "open", Net: nw, Addr: at, ID: id}); a.Err != "" {
					t.Fatalf("%s -> %s %s: %s", p.name, nw, at, a.Err)
				}
			}
			id++
		}
	}
	for _, app := range []string{"b", "c"} {
		p := allow(app, model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("d")}})
		f.cluster.Policies[p.ID()] = p
	}
	f.apply()
	for i := range id {
		if a := f.a.call(request{Op: "talk", ID: i, Timeout: 400}); a.Err == "" {
			t.Errorf("flow %d of the pod that is denied goes on: %q", i, a.Reply)
		}
		if a := f.d.call(request{Op: "talk", ID: i}); a.Err != "" {
			t.Errorf("flow %d of the pod that is allowed: %s", i, a.Err)
		}
	}
}
