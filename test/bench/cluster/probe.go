// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/model"
)

// Ports of the probes.
const (
	probePort    = 9000 // of the target, for pods with the label
	policyPort   = 9100 // and the next one: of the target, as a policy says in turns
	everyonePort = 9200 // of the target, for all pods of the cluster
	servicePort  = 8081
)

// Kinds of marks.
const (
	podMark   = "pod"
	sliceMark = "slice"
)

// receivers are where connections to the Service end whose endpoint changes: addresses of the node.
var receivers = [2]netip.Addr{netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("10.200.0.2")}

// effectWithin is how long a change may take until it counts as lost.
const effectWithin = time.Minute

// prober makes changes whose effect on packets is seen at our node, and whose marks stand-ins see.
type prober struct {
	s       *site
	slice   *discoveryv1.EndpointSlice
	service netip.Addr
	seq     int

	mu      sync.Mutex
	written map[string]int64 // marks: when the call that wrote them began, Unix ns
}

func (p *prober) init(s *site) {
	p.s, p.written = s, map[string]int64{}
	svc, err := s.kube.CoreV1().Services(probeSpace).Create(s.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: targetPod},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}}}, metav1.CreateOptions{})
	s.must(err)
	p.service = netip.MustParseAddr(svc.Spec.ClusterIP)
	p.slice, err = s.kube.DiscoveryV1().EndpointSlices(probeSpace).Create(s.ctx, p.sliceAt(0, 0), metav1.CreateOptions{})
	s.must(err)
}

// sliceAt is the slice of the Service with one of the receivers. Its second port is the mark.
func (p *prober) sliceAt(at, mark int) *discoveryv1.EndpointSlice {
	http, second, proto, port, number := "http", "mark", corev1.ProtocolTCP, int32(servicePort), int32(mark%60000+1024)
	node, yes, no := nodeName(0), true, false
	out := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: probeSpace, Name: targetPod, Labels: map[string]string{
		discoveryv1.LabelServiceName: targetPod, discoveryv1.LabelManagedBy: "weir-bench"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &http, Protocol: &proto, Port: &port}, {Name: &second, Protocol: &proto, Port: &number}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{receivers[at].String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}}}}
	if p.slice != nil {
		out.ResourceVersion = p.slice.ResourceVersion
	}
	return out
}

// marks are those of the probes' changes among what a stand-in was sent, by kind.
func marks(ch *model.Changes) map[string]string {
	var out map[string]string
	add := func(kind, mark string) {
		if out == nil {
			out = map[string]string{}
		}
		out[kind] = kind + " " + mark
	}
	if pod := ch.Pods[model.Name{Namespace: probeSpace, Name: probePod}]; pod != nil {
		add(podMark, pod.Labels["app"])
	}
	if slice := ch.Slices[model.Name{Namespace: probeSpace, Name: targetPod}]; slice != nil {
		for _, port := range slice.Ports {
			if port.Name == "mark" {
				add(sliceMark, fmt.Sprint(port.Port))
			}
		}
	}
	return out
}

func (p *prober) note(mark string, when time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written[mark] = when.UnixNano()
}

// reaches reports whether a datagram of a pod behind the uplink is answered on a port of the target
// within a time. Each comes from a port of its own, so that it belongs to no earlier flow.
func (p *prober) reaches(from netip.Addr, port int, within time.Duration) bool {
	to := &net.UDPAddr{IP: late(0, 0).AsSlice(), Port: port}
	var conn *net.UDPConn
	p.s.must(p.s.remote.do(func() (err error) {
		conn, err = net.DialUDP("udp4", &net.UDPAddr{IP: from.AsSlice()}, to)
		return err
	}))
	defer conn.Close()
	if _, err := conn.Write([]byte("?")); err != nil {
		return false
	}
	_ = conn.SetReadDeadline(time.Now().Add(within)) // of a socket that is open
	var b [8]byte
	_, err := conn.Read(b[:])
	return err == nil
}

// untilReaches waits until a pod behind the uplink reaches a port of the target.
func (p *prober) untilReaches(from netip.Addr, port int) error {
	for end := time.Now().Add(effectWithin); !p.reaches(from, port, 2*time.Millisecond); {
		if time.Now().After(end) {
			return fmt.Errorf("%s does not reach port %d of the target after %s", from, port, effectWithin)
		}
	}
	return nil
}

func (p *prober) untilDenied(from netip.Addr, port int) error {
	for end := time.Now().Add(effectWithin); p.reaches(from, port, 20*time.Millisecond); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s still reaches port %d of the target after %s", from, port, effectWithin)
		}
	}
	return nil
}

// timed returns how long a change takes from the call that writes it to its effect.
func (p *prober) timed(mark string, write, effect func() error) (time.Duration, error) {
	began := time.Now()
	if mark != "" {
		p.note(mark, began)
	}
	failed := make(chan error, 1)
	go func() { failed <- write() }()
	err := effect()
	took := time.Since(began)
	return took, errors.Join(err, <-failed)
}

// label lets the probe in by its labels, and out again, which is not timed.
func (p *prober) label() (time.Duration, error) {
	p.seq++
	app, s := fmt.Sprint("m", p.seq), p.s
	pods := s.kube.CoreV1().Pods(probeSpace)
	patch := func(open, app string) error {
		_, err := pods.Patch(s.ctx, probePod, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"open":%q,"app":%q}}}`, open, app), metav1.PatchOptions{})
		return err
	}
	took, err := p.timed(podMark+" "+app, func() error { return patch("yes", app) }, func() error { return p.untilReaches(late(1, 0), probePort) })
	return took, errors.Join(err, patch("no", app), p.untilDenied(late(1, 0), probePort))
}

// port changes the port that a policy opens.
func (p *prober) port() (time.Duration, error) {
	p.seq++
	port, s := policyPort+p.seq%2, p.s
	if p.reaches(late(1, 1), port, 20*time.Millisecond) {
		port = policyPort + (p.seq+1)%2
	}
	return p.timed("", func() error {
		_, err := s.kube.NetworkingV1().NetworkPolicies(probeSpace).Patch(s.ctx, "ports", types.JSONPatchType,
			fmt.Appendf(nil, `[{"op":"replace","path":"/spec/ingress/0/ports/0/port","value":%d}]`, port), metav1.PatchOptions{})
		return err
	}, func() error { return p.untilReaches(late(1, 1), port) })
}

// endpoint changes the endpoint of a Service.
func (p *prober) endpoint() (time.Duration, error) {
	p.seq++
	slice, at, s := p.sliceAt(p.seq%2, p.seq), p.seq%2, p.s
	if now, ok := p.dial(); ok && now == at {
		at = 1 - at
		slice = p.sliceAt(at, p.seq)
	}
	return p.timed(fmt.Sprint(sliceMark, " ", *slice.Ports[1].Port), func() error {
		got, err := s.kube.DiscoveryV1().EndpointSlices(probeSpace).Update(s.ctx, slice, metav1.UpdateOptions{})
		if err == nil {
			p.slice = got
		}
		return err
	}, func() error {
		for end := time.Now().Add(effectWithin); ; time.Sleep(200 * time.Microsecond) {
			if now, ok := p.dial(); ok && now == at {
				return nil
			}
			if time.Now().After(end) {
				return fmt.Errorf("the endpoint's change has no effect after %s", effectWithin)
			}
		}
	})
}

// dial makes a new connection to the Service and returns the receiver that it got.
func (p *prober) dial() (int, bool) {
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(p.service, 80).String(), time.Second)
	if err != nil {
		return 0, false
	}
	defer c.Close()
	var name [1]byte
	_ = c.SetReadDeadline(time.Now().Add(time.Second)) // of a socket that is open
	n, err := c.Read(name[:])
	return int(name[0]), err == nil && n == 1
}

// settle makes one change of each kind that is not counted.
func (p *prober) settle() {
	for _, f := range []func() (time.Duration, error){p.label, p.port, p.endpoint} {
		_, err := f()
		p.s.must(err)
	}
}
