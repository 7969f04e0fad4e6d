// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// base is what most tests begin with: a server and a client on each worker, and a Service for each
// server whose node ports begin at 30710 and 30720.
type base struct {
	*space
	srv1, srv2, cli1, cli2 *place
	svc1, svc2             string // cluster IPs
}

const (
	nodePort1 = 30710
	nodePort2 = 30720
)

func newBase(t *testing.T) *base {
	t.Helper()
	figures.begin(t)
	b := &base{space: all.newSpace(t, strings.ToLower(t.Name()))}
	p := b.start(t, b.server("srv1", "worker1", nil), b.server("srv2", "worker2", nil), b.idle("cli1", "worker1", nil), b.idle("cli2", "worker2", nil))
	b.srv1, b.srv2, b.cli1, b.cli2 = p[0], p[1], p[2], p[3]
	b.svc1 = b.service(t, "svc1", map[string]string{"pod": "srv1"}, nodePort1, nil).Spec.ClusterIP
	b.svc2 = b.service(t, "svc2", map[string]string{"pod": "srv2"}, nodePort2, nil).Spec.ClusterIP
	eventually(t, 20*time.Second, "the Services", func() error {
		for _, s := range []struct{ ip, name string }{{b.svc1, "srv1"}, {b.svc2, "srv2"}} {
			for _, from := range []*place{b.cli1, b.cli2, b.client(1)} {
				to := at(s.ip, whoPort)
				if from.pod == "" {
					to = at(cpAddr, map[string]int32{"srv1": nodePort1, "srv2": nodePort2}[s.name]+nodeWho)
				}
				if r := from.dial(t, to, 1); r.Failed > 0 {
					return fmt.Errorf("%v → %s: %v", from, s.name, r)
				}
			}
		}
		return nil
	})
	return b
}
