// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/nodestate"
)

// gathered are the series as `name{label="value"} value`.
func gathered(t *testing.T, c *Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("names of metrics: %v %v", problems, err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			out[strings.TrimPrefix(f.GetName(), "weir_bgp_")+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	state := &nodestate.State{}
	p := &process{}
	c := &Collector{Process: p, State: func() *nodestate.State { return state }}
	if got := gathered(t, c); len(got) != 0 {
		t.Errorf("a node without BGP has %v", got)
	}
	state = running
	if got := gathered(t, c); len(got) != 3 || got["process_up{}"] != 0 || got["sessions_wanted{}"] != 4 {
		t.Errorf("a node without a process has %v", got)
	}
	p.status = statusNow()
	p.status.Restoring = true
	p.status.Routes = fib.Status{Learned: 9, Installed: 5, Unresolved: 3, Kept: 1}
	p.status.Peers[0].Name, p.status.Peers[0].Flaps, p.status.Peers[0].Received, p.status.Peers[0].Advertised = "mesh n2", 2, 7, 1
	got := gathered(t, c)
	for series, want := range map[string]float64{
		"process_up{}": 1, "restoring{}": 1, "process_start_time_seconds{}": float64(began.Unix()), "own_prefixes{}": 0,
		"learned_routes{}": 9, "installed_routes{}": 5, "unresolved_routes{}": 3, "kept_routes{}": 1,
		`sessions{family="ipv4",state="established"}`: 1, `sessions{family="ipv4",state="active"}`: 1, `sessions{family="ipv6",state="openconfirm"}`: 1, `sessions{family="ipv6",state="idle"}`: 0,
		`session_up{name="mesh n2",peer="192.0.2.2"}`: 1, `session_up{name="",peer="192.0.2.9"}`: 0,
		`session_flaps_total{name="mesh n2",peer="192.0.2.2"}`: 2, `session_received_routes{name="mesh n2",peer="192.0.2.2"}`: 7, `session_advertised_routes{name="mesh n2",peer="192.0.2.2"}`: 1,
		`session_last_change_time_seconds{name="mesh n2",peer="192.0.2.2"}`: float64(began.Unix()),
	} {
		if have, is := got[series]; !is || have != want {
			t.Errorf("%s: %v (there: %v), want %v", series, have, is, want)
		}
	}
	if _, is := got[`session_last_change_time_seconds{name="",peer="192.0.2.9"}`]; is {
		t.Error("a session that never was has changed")
	}

	p.status.Peers = nil
	for i := range maxSeries + 10 {
		p.status.Peers = append(p.status.Peers, feed.Peer{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), State: "established"})
	}
	got = gathered(t, c)
	ups := 0
	for series := range got {
		if strings.HasPrefix(series, "session_up{") {
			ups++
		}
	}
	if all := got[`sessions{family="ipv4",state="established"}`]; ups != maxSeries || all != maxSeries+10 {
		t.Errorf("%d peers have series of their own, %v are counted", ups, all)
	}
}
