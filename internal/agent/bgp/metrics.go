// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/nodestate"
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_"+name, help, labels, nil)
}

// The metrics. They are there while BGP is in use on the node; those of routes and of the process
// while that runs. No series is of one route.
var (
	descProcessUp   = describe("bgp_process_up", "Whether the node's BGP process runs; there while BGP is in use.")
	descStart       = describe("bgp_process_start_time_seconds", "When the BGP process began, in Unix time.")
	descRestoring   = describe("bgp_restoring", "Whether the BGP process has begun anew, and peers have not all sent their routes again.")
	descWanted      = describe("bgp_sessions_wanted", "Sessions that the node should have.")
	descSessions    = describe("bgp_sessions", "Sessions of the node, by family and by state: idle, connect, active, opensent, openconfirm, established.", "family", "state")
	descUp          = describe("bgp_session_up", "Whether the session with a peer is established. The first 256 peers by address.", "peer", "name")
	descFlaps       = describe("bgp_session_flaps_total", "Times that an established session with a peer ended.", "peer", "name")
	descLastChange  = describe("bgp_session_last_change_time_seconds", "When the session with a peer was established, or ended, in Unix time; not there for one that was never established.", "peer", "name")
	descReceived    = describe("bgp_session_received_routes", "Routes that a peer has sent and not withdrawn, those that are not used among them.", "peer", "name")
	descAdvertised  = describe("bgp_session_advertised_routes", "Routes that are sent to a peer.", "peer", "name")
	descLearned     = describe("bgp_learned_routes", "Prefixes for which peers have a route that is used.")
	descInstalled   = describe("bgp_installed_routes", "Learned prefixes that are in the kernel.")
	descUnresolved  = describe("bgp_unresolved_routes", "Learned prefixes that are not in the kernel because their next hop is not reached.")
	descKept        = describe("bgp_kept_routes", "Learned prefixes that are not in the kernel because the node has them itself, or carries them in a tunnel.")
	descOwnPrefixes = describe("bgp_own_prefixes", "Prefixes of the node that it advertises.")
)

// maxSeries bounds the peers that have series of their own.
const maxSeries = 256

// states are all that a session may be in: each has a series, also at zero.
var states = []string{"idle", "connect", "active", "opensent", "openconfirm", "established"}

// Collector reads everything when it is asked.
type Collector struct {
	Process interface{ Status() *feed.Status }
	State   func() *nodestate.State // nil = it is not known yet
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descProcessUp, descStart, descRestoring, descWanted, descSessions, descUp, descFlaps, descLastChange, descReceived, descAdvertised,
		descLearned, descInstalled, descUnresolved, descKept, descOwnPrefixes} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.State()
	if s == nil || s.BGP == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	st := c.Process.Status()
	gauge(descProcessUp, one(st != nil))
	gauge(descWanted, float64(len(s.BGP.Peers)))
	gauge(descOwnPrefixes, float64(len(s.BGP.Advertise)))
	if st == nil {
		return
	}
	gauge(descStart, unix(st.Since))
	gauge(descRestoring, one(st.Restoring))
	gauge(descLearned, float64(st.Routes.Learned))
	gauge(descInstalled, float64(st.Routes.Installed))
	gauge(descUnresolved, float64(st.Routes.Unresolved))
	gauge(descKept, float64(st.Routes.Kept))
	type of struct {
		family, state string
	}
	sums := map[of]int{}
	for i, p := range st.Peers {
		family := "ipv4"
		if p.Addr.Is6() {
			family = "ipv6"
		}
		sums[of{family, p.State}]++
		if i >= maxSeries {
			continue
		}
		peer := p.Addr.String()
		gauge(descUp, one(p.Established()), peer, p.Name)
		count(descFlaps, uint64(p.Flaps), peer, p.Name)
		gauge(descReceived, float64(p.Received), peer, p.Name)
		gauge(descAdvertised, float64(p.Advertised), peer, p.Name)
		if !p.Since.IsZero() {
			gauge(descLastChange, unix(p.Since), peer, p.Name)
		}
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, state := range states {
			gauge(descSessions, float64(sums[of{family, state}]), family, state)
		}
	}
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }
