// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

var connectModes = []model.ConnectTimeLB{model.ConnectTimeTCP, model.ConnectTimeEnabled, model.ConnectTimeDisabled}

// hostEndpoints makes a node itself the only backend of a Service; it serves at 9000.
func (f *fixture) hostEndpoints(name string, n *node) {
	f.slices(name, 9000, []model.ServiceEndpoint{{Addrs: []netip.Addr{n.addr}, Node: n.name, Ready: true, Serving: true}})
}

// TestOwnBackends: a pod reaches itself, and the node's processes their own node, through a
// Service.
func TestOwnBackends(t *testing.T) { inBoth(t, testOwnBackends) }

func testOwnBackends(t *testing.T, fam family) {
	for _, mode := range connectModes {
		if !plays(t, fam, one(connectModes, mode)) {
			continue
		}
		t.Run(string(mode), func(t *testing.T) {
			f := newFixture(t, fam)
			f.cluster.Settings.ConnectTime = mode
			f.service("self", "10.96.0.1", 30001, f.a)
			f.service("host", "10.96.0.2", 30002)
			f.hostEndpoints("host", f.n1)
			f.service("far", "10.96.0.3", 30003, f.c)
			f.apply()
			for _, nw := range networks {
				f.a.reaches("a", nw, "10.96.0.1:80")
				f.a.reaches("a", nw, "172.30.0.8:30001")
				f.n1.reaches("n1", nw, "10.96.0.2:80")
				f.n1.reaches("n1", nw, "172.30.0.8:30002")
				f.n1.reaches("c", nw, "172.30.0.8:30003")
				f.n2.reaches("n1", nw, "10.96.0.2:80")
				f.a.reaches("n1", nw, "10.96.0.2:80")
				f.c.reaches("n1", nw, "10.96.0.2:80")
			}
		})
	}
}

// TestLoopbackHostPorts: the node's processes, and nobody else, reach a host port on a loopback
// address.
func TestLoopbackHostPorts(t *testing.T) { inBoth(t, testLoopbackHostPorts) }

func testLoopbackHostPorts(t *testing.T, fam family) {
	for _, mode := range connectModes {
		if !plays(t, fam, one(connectModes, mode)) {
			continue
		}
		t.Run(string(mode), func(t *testing.T) {
			f := newFixture(t, fam)
			f.cluster.Settings.ConnectTime = mode
			for _, proto := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP} {
				for _, a := range f.pairOf(netip.MustParseAddr("127.0.0.1")) {
					f.b.obj.Ports = append(f.b.obj.Ports, model.PodPort{Protocol: proto, Port: 8080, HostPort: 8889, HostIP: a})
				}
			}
			f.cluster.Pods.Put(f.b.obj)
			f.apply()
			for _, nw := range networks {
				f.n1.reaches("b", nw, "127.0.0.1:8889")
				for who, w := range map[string]*worker{"the pod": f.b.worker, "the other node": f.n2.worker} {
					if a := w.get(nw, "127.0.0.1:8889"); a.Err == "" {
						t.Errorf("%s reaches it by %s: %q", who, nw, a.Reply)
					}
				}
			}
		})
	}
}

// TestUDPSocketsFollow: no UDP socket, connected or not, of a pod or of the node, stays with a
// backend that is gone; each stays with its backend until then.
func TestUDPSocketsFollow(t *testing.T) { inBoth(t, testUDPSocketsFollow) }

func testUDPSocketsFollow(t *testing.T, fam family) {
	for _, mode := range connectModes {
		if !plays(t, fam, one(connectModes, mode)) {
			continue
		}
		t.Run(string(mode), func(t *testing.T) {
			f := newFixture(t, fam)
			f.cluster.Settings.ConnectTime = mode
			f.service("svc", "10.96.0.1", 30001, f.b)
			f.apply()
			kinds := []struct {
				what string
				w    *worker
				addr string
				free bool // not connected
			}{
				{"pod, connected", f.a.worker, "10.96.0.1:80", false},
				{"pod, not connected", f.a.worker, "10.96.0.1:80", true},
				{"node, connected", f.n1.worker, "10.96.0.1:80", false},
				{"node, not connected", f.n1.worker, "10.96.0.1:80", true},
				{"node, connected to its own port", f.n1.worker, "172.30.0.8:30001", false},
				{"node, not connected, its own port", f.n1.worker, "172.30.0.8:30001", true},
			}
			ask := func(id int) answer {
				k := kinds[id]
				if k.free {
					return k.w.call(request{Op: "send", Addr: k.addr, ID: id})
				}
				return k.w.call(request{Op: "talk", ID: id})
			}
			for id, k := range kinds {
				r := request{Op: "open", Net: "udp", Addr: k.addr, ID: id}
				if k.free {
					r = request{Op: "bind", Addr: "0.0.0.0:0", ID: id}
				}
				if a := k.w.call(r); a.Err != "" {
					t.Fatalf("%s: %s", k.what, a.Err)
				}
				if a := ask(id); !strings.HasPrefix(a.Reply, "b ") || a.Peer != k.addr {
					t.Errorf("%s: %q from %s (%s), want b as %s", k.what, a.Reply, a.Peer, a.Err, k.addr)
				}
			}
			f.endpoints("svc", f.b, f.c, f.d)
			f.apply()
			for id, k := range kinds {
				for range 8 {
					if a := ask(id); !strings.HasPrefix(a.Reply, "b ") {
						t.Errorf("%s: with more backends %q (%s), want b still", k.what, a.Reply, a.Err)
					}
				}
			}
			f.endpoints("svc", f.c)
			f.apply()
			for id, k := range kinds {
				a := ask(id)
				if a.Err != "" && k.w == f.n1.worker && !k.free { // it was ended: who owns it connects again
					a = k.w.call(request{Op: "open", Net: "udp", Addr: k.addr, ID: id})
				}
				if !strings.HasPrefix(a.Reply, "c ") || a.Peer != k.addr {
					t.Errorf("%s: after its backend went %q from %s (%s), want c as %s", k.what, a.Reply, a.Peer, a.Err, k.addr)
				}
			}
		})
	}
}
