// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-net/weir/internal/dataplane"
)

// Handshakes are how long TCP's handshakes took of the connections that flow records are kept of,
// each once, by the path that their packets take from this node.
type Handshakes struct {
	*prometheus.HistogramVec
}

// NewHandshakes returns empty histograms.
func NewHandshakes() *Handshakes {
	return &Handshakes{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "weir", Name: "flow_tcp_handshake_seconds",
		Help:    "How long TCP's handshakes took, from SYN to the client's ACK, of the connections that flow records are kept of and where it is known, by the path that the client's packets take from the node: local, direct, vxlan, ipip, stack. On nftables it is not known.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 3},
	}, []string{"path"})}
}

// Note counts one.
func (h *Handshakes) Note(path dataplane.FlowPath, took time.Duration) {
	h.WithLabelValues(string(path)).Observe(took.Seconds())
}
