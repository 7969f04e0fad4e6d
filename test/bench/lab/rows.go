// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/bench/lab"
)

// The configurations. Tunnel, DSR and path share a lab: their settings are switched live between
// rounds.
const (
	none       = "none"
	kpIPTables = "kube-proxy-iptables"
	kpNFTables = "kube-proxy-nftables"
	weirTunnel = "weir-tunnel"
	weirDSR    = "weir-dsr"
	weirPath   = "weir-path" // no balancing at connect time: Services are translated in the packet path
	weirNFT    = "weir-nft"  // the nftables data plane, tunnel
)

var configurations = []string{none, kpIPTables, kpNFTables, weirTunnel, weirDSR, weirPath, weirNFT}

// kind is what is measured.
type kind string

const (
	requests   kind = "requests"   // connect, request, close
	roundtrips kind = "roundtrips" // of a 64-byte UDP datagram
	stream     kind = "stream"     // one TCP stream
	datagrams  kind = "datagrams"  // UDP at a fixed rate
	apache     kind = "ab"         // ApacheBench
)

func (k kind) unit() string {
	switch k {
	case stream:
		return "Gbit/s"
	case datagrams:
		return "CPU s/GB"
	}
	return "µs"
}

// value is what counts of a run.
func (k kind) value(r bench.Run) float64 {
	switch k {
	case stream:
		return r.Gbits
	case datagrams:
		return r.CPUPer
	}
	return r.Times.Mean
}

// row is one path. Which service is meant where by "local" and "remote" is the client's view.
type row struct {
	name    string
	kind    kind
	service bool // not there without a data plane
	modes   bool // differs between the modes of Weir
	connect bool // differs by whether Weir balances at connect time
	sized   bool // measured with growing numbers of other Services
	control bool // of sized ones: shows what else changes from size to size
	crowd   bool // about a Service of many backends
	others  int  // how many other Services there are; 0 = a lab as it came up
	from    func(*site) lab.Place
	to      func(*site, kind) netip.AddrPort
}

// Ports of the servers and of the services in front of them.
const (
	httpPort, sinkPort         = 8080, 8081
	hostHTTPPort, hostSinkPort = 7080, 7081
	nearNode, farNode          = 30604, 30704 // HTTP and UDP; the sink is one further
	apachePort                 = 8090         // of a server that closes connections first
	crowdPort                  = 20000        // the first one of the backends of the Service "many"
	onePort, manyPort          = 30610, 30611 // node ports of the Services "one" and "many"
)

func port(k kind, http, sink uint16) uint16 {
	if k == stream || k == datagrams {
		return sink
	}
	return http
}

func client1(s *site) lab.Place   { return s.lab.Host("client1", lab.Client1) }
func worker1(s *site) lab.Place   { return s.lab.Host("worker1", lab.Worker1) }
func podClient(s *site) lab.Place { return s.client }

func hostProcess(_ *site, k kind) netip.AddrPort {
	return netip.AddrPortFrom(lab.Worker2, port(k, hostHTTPPort, hostSinkPort))
}
func addrOf(which func(*site) netip.Addr) func(*site, kind) netip.AddrPort {
	return func(s *site, k kind) netip.AddrPort { return netip.AddrPortFrom(which(s), port(k, httpPort, sinkPort)) }
}
func nodePort(node netip.Addr, at uint16) func(*site, kind) netip.AddrPort {
	return func(_ *site, k kind) netip.AddrPort { return netip.AddrPortFrom(node, port(k, at, at+1)) }
}

func nearPod(s *site) netip.Addr     { return s.near.Addr }
func farPod(s *site) netip.Addr      { return s.far.Addr }
func nearService(s *site) netip.Addr { return s.nearIP }
func farService(s *site) netip.Addr  { return s.farIP }

// clusterIP is a Service of one of the special runs.
func clusterIP(name string, port uint16) func(*site, kind) netip.AddrPort {
	return func(s *site, _ kind) netip.AddrPort { return netip.AddrPortFrom(s.special[name], port) }
}

// Names of rows that targets are about.
const (
	rowHostLatency   = "node → node, connections"
	rowHostStream    = "node → node, TCP stream"
	rowPortLocal     = "client → NodePort, local backend, connections"
	rowServiceStream = "pod → ClusterIP, other node, TCP stream"
	rowPortStream    = "client → NodePort, remote backend, TCP stream"
	rowPodTrip       = "pod → pod, other node, UDP round trip"
	rowServiceTrip   = "pod → ClusterIP, other node, UDP round trip"
	rowHostTrip      = "node → node, UDP round trip"
	rowHostRate      = "node → node, UDP at a fixed rate"
	rowPodRate       = "pod → pod, other node, UDP at a fixed rate"
	rowServiceRate   = "pod → ClusterIP, other node, UDP at a fixed rate"
	rowClientHost    = "client → host process, connections"
	rowPodRemote     = "pod → pod, other node, connections"
	rowServiceRemote = "pod → ClusterIP, other node, connections"
	rowHostService   = "host process → ClusterIP, other node, connections"
	rowPortRemote    = "client → NodePort, remote backend, connections"
	rowPodStream     = "pod → pod, other node, TCP stream"
	rowApache        = "pod → ClusterIP, other node, ApacheBench"
	rowOne           = ", one backend"
	rowMany          = ", many backends"
)

// rows are measured in this order. The client pod and the pod "near" are on worker1, the pod "far"
// and the host process on worker2.
var rows = []row{
	{name: rowHostLatency, kind: requests, sized: true, control: true, from: worker1, to: hostProcess},
	{name: rowClientHost, kind: requests, from: client1, to: hostProcess},
	{name: rowPodRemote, kind: requests, sized: true, control: true, from: podClient, to: addrOf(farPod)},
	{name: rowServiceRemote, kind: requests, service: true, connect: true, sized: true, from: podClient, to: addrOf(farService)},
	{name: rowHostService, kind: requests, service: true, connect: true, sized: true, from: worker1, to: addrOf(farService)},
	{name: "pod → pod, same node, connections", kind: requests, from: podClient, to: addrOf(nearPod)},
	{name: "pod → ClusterIP, same node, connections", kind: requests, service: true, connect: true, from: podClient, to: addrOf(nearService)},
	{name: rowPortLocal, kind: requests, service: true, modes: true, sized: true, from: client1, to: nodePort(lab.Worker2, farNode)},
	{name: rowPortRemote, kind: requests, service: true, modes: true, sized: true, from: client1, to: nodePort(lab.ControlPlane, farNode)},
	{name: rowHostStream, kind: stream, from: worker1, to: hostProcess},
	{name: rowPodStream, kind: stream, from: podClient, to: addrOf(farPod)},
	{name: rowServiceStream, kind: stream, service: true, connect: true, from: podClient, to: addrOf(farService)},
	{name: rowPortStream, kind: stream, service: true, modes: true, from: client1, to: nodePort(lab.ControlPlane, farNode)},
	{name: rowHostTrip, kind: roundtrips, from: worker1, to: hostProcess},
	{name: rowPodTrip, kind: roundtrips, from: podClient, to: addrOf(farPod)},
	{name: rowServiceTrip, kind: roundtrips, service: true, connect: true, from: podClient, to: addrOf(farService)},
	{name: "client → NodePort, remote backend, UDP round trip", kind: roundtrips, service: true, modes: true, from: client1, to: nodePort(lab.ControlPlane, farNode)},
	{name: rowHostRate, kind: datagrams, from: worker1, to: hostProcess},
	{name: rowPodRate, kind: datagrams, from: podClient, to: addrOf(farPod)},
	{name: rowServiceRate, kind: datagrams, service: true, connect: true, from: podClient, to: addrOf(farService)},
	{name: "client → NodePort, remote backend, UDP at a fixed rate", kind: datagrams, service: true, modes: true, from: client1, to: nodePort(lab.ControlPlane, farNode)},
	{name: rowApache, kind: apache, service: true, from: podClient, to: clusterIP("ab", apachePort)},
	{name: "pod → ClusterIP, other node" + rowOne, kind: requests, service: true, crowd: true, from: podClient, to: clusterIP("one", crowdPort)},
	{name: "pod → ClusterIP, other node" + rowMany, kind: requests, service: true, crowd: true, from: podClient, to: clusterIP("many", crowdPort)},
	{name: "host process → ClusterIP, other node" + rowOne, kind: requests, service: true, crowd: true, from: worker1, to: clusterIP("one", crowdPort)},
	{name: "host process → ClusterIP, other node" + rowMany, kind: requests, service: true, crowd: true, from: worker1, to: clusterIP("many", crowdPort)},
	{name: "client → NodePort, remote backend" + rowOne, kind: requests, service: true, modes: true, crowd: true, from: client1, to: nodePort(lab.ControlPlane, onePort)},
	{name: "client → NodePort, remote backend" + rowMany, kind: requests, service: true, modes: true, crowd: true, from: client1, to: nodePort(lab.ControlPlane, manyPort)},
}

// withOthers is the row measured with other Services.
func (r row) withOthers(others int) row {
	r.others = others
	r.name += fmt.Sprintf(", beside %d Services", others)
	return r
}

// has says whether a row exists in a configuration. A row that a setting does not change is
// measured with one value.
func (r row) has(configuration string) bool {
	switch configuration {
	case none:
		return !r.service
	case weirDSR:
		return r.modes
	case weirPath:
		return r.connect
	}
	return true
}

// measure runs a row in all its configurations, in turns.
func (r *runner) measure(ctx context.Context, w row, limit float64) ([]bench.Outcome, error) {
	var cases []bench.Case
	for _, s := range r.sites {
		if s.fillers != w.others && s.lab.Proxy != none {
			continue // a lab that this size is too large for
		}
		if err := s.forget(ctx); err != nil {
			return nil, err
		}
		for _, c := range s.configurations {
			if w.has(c) {
				cases = append(cases, bench.Case{Row: w.name, Configuration: c, Run: func(ctx context.Context) (bench.Run, error) { return r.once(ctx, w, s, c) }})
			}
		}
	}
	rounds := bench.Rounds{Count: r.rounds, Extra: r.extra, Others: limit, Fill: r.rounds, Retry: 2, Quiet: time.Second,
		Say: func(round int, c bench.Case, run bench.Run, verdict string) {
			if verdict != "kept" {
				verdict = fmt.Sprintf("  disturbed: something else kept %.2f CPUs busy", run.Others)
			} else {
				verdict = ""
			}
			if w.kind == datagrams && (run.Held < 0.98 || run.Lost > 0.001) {
				verdict += fmt.Sprintf("  %.0f %% of the rate was sent, %.1f %% of that lost", 100*run.Held, 100*run.Lost)
			}
			fmt.Printf("  round %2d  %-20s %8s %s%s\n", round, c.Configuration, bench.Number(w.kind.value(run)), w.kind.unit(), verdict)
		}}
	return rounds.Interleave(ctx, cases)
}

// once is one run of a row in one configuration: warm-up, then what counts. Client and server share
// a CPU, because that is the pure cost of the path; a stream's ends have one each.
func (r *runner) once(ctx context.Context, w row, s *site, configuration string) (bench.Run, error) {
	if err := s.enter(ctx, configuration, w); err != nil {
		return bench.Run{}, err
	}
	from, to := w.from(s), w.to(s, w.kind).String()
	args := []string{string(w.kind), to, "--cpu", "0", "--ports", "10000-29999", "--reuse-time-wait"}
	switch w.kind {
	case stream, datagrams:
		args = append(args, "--time", r.streamTime.String())
	case apache:
		args = append(args, "--count", strconv.Itoa(r.apacheCount), "--warm-up", strconv.Itoa(r.apacheCount/50), "--server-cpu")
	case roundtrips:
		args = append(args, "--count", strconv.Itoa(5*r.connections), "--warm-up", strconv.Itoa(r.connections/2), "--server-cpu")
	default:
		args = append(args, "--count", strconv.Itoa(r.connections), "--warm-up", strconv.Itoa(r.connections/10), "--server-cpu")
	}
	return from.Measure(ctx, args...)
}
