// SPDX-License-Identifier: Apache-2.0

// Package scale measures the control plane of a node with many Services: a real API server and
// etcd, the real agent (and kube-proxy alongside it), and no node but this one. `make bench-scale`
// runs it at 10 to 100,000 Services; `make test` runs it small, and holds that a change is seen at
// all and costs little.
//
// What is timed is what users see: from the call that writes an EndpointSlice to the first new
// connection that gets the new backend.
//
// TestChangesDuringSwitch and TestChangesDuringRestart time the same with a change in every 100 ms,
// while the agent changes its data plane WEIR_SCALE_SWITCHES times, and while it is ended and
// started again, and another one takes its place, WEIR_SCALE_RESTARTS times each.
package scale
