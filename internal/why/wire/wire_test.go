// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

func TestCheck(t *testing.T) {
	a, b, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")
	good := Request{Hook: FromWorkload, Source: a, Destination: b, Protocol: model.ProtocolTCP, Port: 80}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	received := Handover{Hook: FromTunnel, From: b, Frame: make([]byte, 60)}
	for name, change := range map[string]func(*Request){
		"no addresses":                func(q *Request) { q.Source = netip.Addr{} },
		"two families":                func(q *Request) { q.Source = six },
		"mapped":                      func(q *Request) { q.Source, q.Destination = netip.AddrFrom16(a.As16()), netip.AddrFrom16(b.As16()) },
		"a zone":                      func(q *Request) { q.Source, q.Destination = six, netip.MustParseAddr("fe80::1%eth0") },
		"multicast":                   func(q *Request) { q.Destination = netip.MustParseAddr("224.0.0.1") },
		"a protocol without ports":    func(q *Request) { q.Protocol = 47 },
		"ICMP of the other family":    func(q *Request) { q.Protocol = model.ProtocolICMPv6 },
		"a sender of another family":  func(q *Request) { q.Sender = six },
		"a sender that is the source": func(q *Request) { q.Sender = a },
		"a sender on a node":          func(q *Request) { q.Hook, q.Sender = ToUplink, netip.MustParseAddr("10.0.0.3") },
		"no hook":                     func(q *Request) { q.Hook = "" },
		"a foreign hook":              func(q *Request) { q.Hook = "to_workload" },
		"the tunnel":                  func(q *Request) { q.Hook = FromTunnel },
		"a hook and a frame":          func(q *Request) { q.Received = &received },
		"a frame that is too long": func(q *Request) {
			q.Hook, q.Received = "", &Handover{Hook: FromTunnel, From: b, Frame: make([]byte, maxFrame+1)}
		},
		"IP in IP at an uplink": func(q *Request) {
			q.Hook, q.Received = "", &Handover{Hook: FromUplink, From: b, Frame: make([]byte, 60), IPIP: true}
		},
		"IP in IP of IPv6": func(q *Request) {
			q.Hook, q.Received = "", &Handover{Hook: FromTunnel, From: six, Frame: make([]byte, 60), IPIP: true}
		},
		"IP in IP that is encrypted": func(q *Request) {
			q.Hook, q.Received = "", &Handover{Hook: FromTunnel, From: b, Frame: make([]byte, 60), IPIP: true, Encrypted: true}
		},
		"a frame of a pod": func(q *Request) {
			q.Hook, q.Received = "", &Handover{Hook: FromWorkload, From: b, Frame: make([]byte, 60)}
		},
	} {
		q := good
		change(&q)
		if err := q.Check(); err == nil {
			t.Errorf("%s: %+v may be asked", name, q)
		}
	}
	q := good
	if q.Sender = netip.MustParseAddr("10.0.0.3"); q.Check() != nil {
		t.Error(q.Check())
	}
	q = good
	q.Hook, q.Received = "", &received
	if err := q.Check(); err != nil {
		t.Error(err)
	}
}
