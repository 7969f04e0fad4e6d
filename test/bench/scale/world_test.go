// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/bench/store"
	"github.com/weir-net/weir/internal/kernel"
)

const (
	nodeName = "bench"
	nodeAddr = "172.31.255.1"
	ns       = "default"
	port     = 8080

	targetName  = "target"
	sliceSuffix = "-abcde"
)

// lastName is the Service that is made after all others of a cluster of n.
func lastName(n int) string { return fmt.Sprintf("z%06d", n) }

// Where connections to the Services under test end: two addresses of this machine.
var receivers = [2]netip.Addr{netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("10.200.0.2")}

// world is an API server with Services, and this machine as its only node.
type world struct {
	t        *testing.T
	ctx      context.Context
	server   *apitest.Server
	dir      string
	cgroup   string
	services int
	target   netip.Addr // cluster IP of the Service whose endpoint changes
	last     netip.Addr // cluster IP of the Service that was made last
	slice    *discoveryv1.EndpointSlice
	at       int // receiver that target's endpoint is
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, ctx: t.Context(), dir: t.TempDir(), services: 1}
	w.link("eth0", nodeAddr+"/24")
	w.link("pods0", receivers[0].String()+"/32", receivers[1].String()+"/32")
	eth0, err := netlink.LinkByName("eth0")
	w.must(err)
	w.must(netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.IPv4(172, 31, 255, 254)}))
	w.must(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
	for i, a := range receivers {
		w.receive(a, byte(i))
	}
	w.server = apitest.Start(t)
	w.install()
	w.joinCgroup()
	node := &corev1.Node{ObjectMeta: v1.ObjectMeta{Name: nodeName}}
	node, err = w.server.Clients.Kube.CoreV1().Nodes().Create(w.ctx, node, v1.CreateOptions{})
	w.must(err)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddr}}
	_, err = w.server.Clients.Kube.CoreV1().Nodes().UpdateStatus(w.ctx, node, v1.UpdateOptions{})
	w.must(err)
	w.target, w.slice = w.create(targetName, receivers[0])
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// link makes a device that leads nowhere.
func (w *world) link(name string, addrs ...string) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	l := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer-" + name}
	w.must(netlink.LinkAdd(l))
	peer, err := netlink.LinkByName("peer-" + name)
	w.must(err)
	w.must(netlink.LinkSetUp(peer))
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		w.must(err)
		w.must(netlink.AddrAdd(l, addr))
	}
	w.must(netlink.LinkSetUp(l))
}

// receive answers each connection with one byte.
func (w *world) receive(a netip.Addr, name byte) {
	l, err := net.Listen("tcp4", netip.AddrPortFrom(a, port).String())
	w.must(err)
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte{name})
			c.Close()
		}
	}()
}

// joinCgroup moves this process into a control group of its own, whose sockets are the node's.
func (w *world) joinCgroup() {
	root, err := kernel.CgroupV2()
	w.must(err)
	w.cgroup = filepath.Join(root, "weir-scale-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	w.must(os.Mkdir(w.cgroup, 0o755))
	move := func(to string) error { return os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte("0"), 0o644) }
	w.must(move(w.cgroup))
	w.t.Cleanup(func() {
		if err := move(root); err != nil {
			w.t.Errorf("leaving the control group: %v", err)
		}
		for range 3000 { // processes that ended a moment ago
			if err = os.Remove(w.cgroup); err == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		w.t.Errorf("removing the control group: %v", err)
	})
}

// say reports how the work gets on.
func (w *world) say(format string, args ...any) {
	fmt.Printf("scale: "+format+"\n", args...)
}

// grow makes Services until there are n, with two endpoints each; those of the last one are
// receivers.
func (w *world) grow(n int) {
	began, from := time.Now(), w.services
	var services []store.Service
	for i := from; i < n-1; i++ { // the last one comes after
		pod := func(n int) store.Endpoint {
			at := 2*i + n
			return store.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(201 + at>>16), byte(at >> 8), byte(at)}), Port: port, Node: "far"}
		}
		services = append(services, store.Service{Namespace: ns, Name: fmt.Sprintf("s%06d", i), Port: 80,
			IP: netip.AddrFrom4([4]byte{10, byte(104 + i>>16), byte(i >> 8), byte(i)}), Endpoints: []store.Endpoint{pod(0), pod(1)}})
	}
	etcd := store.Store{URL: apitest.Etcd, HTTP: http.DefaultClient}
	w.must(etcd.Make(w.ctx, services, func(done int) {
		w.say("made %d of %d Services in %.0f s", done, len(services), time.Since(began).Seconds())
	}))
	w.services = n
	w.last, _ = w.create(lastName(n), receivers[0], receivers[1])
	w.say("made %d Services in %s", n-from, time.Since(began).Round(time.Millisecond))
}

// create makes a Service with endpoints and returns its cluster IP.
func (w *world) create(name string, endpoints ...netip.Addr) (netip.Addr, *discoveryv1.EndpointSlice) {
	kube := w.server.Clients.Kube
	svc := &corev1.Service{ObjectMeta: v1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}}}
	svc, err := kube.CoreV1().Services(ns).Create(w.ctx, svc, v1.CreateOptions{})
	if err != nil {
		w.t.Error(err)
		return netip.Addr{}, nil
	}
	httpName, proto, number := "http", corev1.ProtocolTCP, int32(port)
	sl := &discoveryv1.EndpointSlice{
		ObjectMeta: v1.ObjectMeta{Name: name + sliceSuffix, Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"},
			OwnerReferences: []v1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: name, UID: svc.UID}}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &httpName, Protocol: &proto, Port: &number}},
	}
	for i, a := range endpoints {
		sl.Endpoints = append(sl.Endpoints, endpoint(a, fmt.Sprintf("%s-%d", name, i)))
	}
	sl, err = kube.DiscoveryV1().EndpointSlices(ns).Create(w.ctx, sl, v1.CreateOptions{})
	if err != nil {
		w.t.Error(err)
	}
	a, err := netip.ParseAddr(svc.Spec.ClusterIP)
	if err != nil {
		w.t.Error(err)
	}
	return a, sl
}

func endpoint(a netip.Addr, pod string) discoveryv1.Endpoint {
	node, yes, no := "far", true, false
	if slices.Contains(receivers[:], a) {
		node = nodeName
	}
	return discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: &node,
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: pod, UID: types.UID(pod)}}
}

// answers reports whether a new connection to a Service gets to any receiver.
func (w *world) answers(service netip.Addr) bool {
	_, ok := w.dial(service)
	return ok
}

// dial makes a new connection and returns the receiver that it got.
func (w *world) dial(service netip.Addr) (int, bool) {
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(service, 80).String(), time.Second)
	if err != nil {
		return 0, false
	}
	defer c.Close()
	var name [1]byte
	c.SetReadDeadline(time.Now().Add(time.Second))
	if n, err := c.Read(name[:]); err != nil || n != 1 {
		return 0, false
	}
	return int(name[0]), true
}

// flip gives the target's endpoint the other address, and waits until new connections get there.
func (w *world) flip() (write, effect time.Duration) {
	w.at = 1 - w.at
	w.slice.Endpoints = []discoveryv1.Endpoint{endpoint(receivers[w.at], fmt.Sprintf("target-%d", w.at))}
	api := w.server.Clients.Kube.DiscoveryV1().EndpointSlices(ns)
	written := make(chan time.Duration, 1)
	began := time.Now()
	go func() {
		now, err := api.Update(w.ctx, w.slice, v1.UpdateOptions{})
		if err != nil {
			w.t.Error(err)
		} else {
			w.slice = now
		}
		written <- time.Since(began)
	}()
	for {
		if got, ok := w.dial(w.target); ok && got == w.at {
			effect = time.Since(began)
			return <-written, effect
		}
		if time.Since(began) > await.Patience {
			w.t.Fatal("an endpoint's change has no effect")
		}
		time.Sleep(100 * time.Microsecond)
	}
}
