// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/test/scenarios/scenario"
)

// noMirror are the scenarios that IPv6 has no counterpart for, and why.
var noMirror = map[string]string{
	"hostile-ipip-sources.txtar":       "IP in IP carries IPv4 alone",
	"ipip.txtar":                       "the same",
	"ipip-live.txtar":                  "the same",
	"ipip-mtu.txtar":                   "the same",
	"ipip-replaced.txtar":              "the same",
	"hostport-loopback.txtar":          "the loopback address is not mirrored",
	"icmp-queries.txtar":               "ICMPv6 has the echo alone",
	"icmp-errors.txtar":                "a timestamp request, of which ICMPv6 has none; random packets have the errors",
	"maglev-affinity.txtar":            "the same",
	"maglev-ingress-lost.txtar":        "the choice follows from a hash of the addresses",
	"maglev-ingress-lost-dsr.txtar":    "the same",
	"maglev-ingress-lost-routed.txtar": "the same",
	"maglev.txtar":                     "the same",
	"mtu.txtar":                        "headers of other lengths",
	"maglev-ingress-lost-mtu.txtar":    "the same",
	"neighbours-odd.txtar":             "ARP",
	"no-backend.txtar":                 "a source that is nobody's in IPv4 only",
	"odd-packets.txtar":                "malformed IPv4 headers, options",
}

// TestIPv6 plays the scenarios with IPv6 in the place of IPv4, on the oracle and on the loaded
// programs.
func TestIPv6(t *testing.T) {
	r := newRunner(t)
	for _, name := range files(t) {
		if strings.HasPrefix(name, "dual-") {
			continue // of both families already
		}
		t.Run(strings.TrimSuffix(name, ".txtar"), func(t *testing.T) {
			defer func() {
				if err := r.Reset(); err != nil {
					t.Error(err)
				}
			}()
			play := func(make scenario.NewCarrier) error { return read(t, name).Play(scenario.Mirror(make)) }
			err := play(scenario.NewSim(1))
			if why, ok := noMirror[name]; ok {
				if err == nil {
					t.Errorf("plays, but is listed as having no counterpart: %s", why)
				}
				return
			}
			if err != nil {
				t.Fatalf("oracle: %v", err)
			}
			if err := timely(t, r, 400*time.Millisecond, func() error { return play(r.New) }); err != nil {
				t.Fatalf("programs: %v", err)
			}
		})
	}
}
