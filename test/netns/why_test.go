// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/agent/vmflows"
	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/why"
	whywire "github.com/weir-net/weir/internal/why/wire"
	"github.com/weir-net/weir/internal/wireguard"
)

// whyAgent answers `weir why` in a driver's process, of a cluster without policies.
type whyAgent struct {
	plane why.DataPlane
	mac   string

	mu    sync.Mutex
	state *nodestate.State // guarded by mu
}

type (
	ebpfPlane struct{ *ebpf.Driver }
	nftPlane  struct{ *nft.Driver }
)

func (ebpfPlane) Name() string { return "eBPF" }
func (nftPlane) Name() string  { return "nftables" }

func (a *whyAgent) AppliedState(context.Context) (*nodestate.State, string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state == nil {
		return nil, "", errors.New("no state was applied yet")
	}
	return a.state, "", nil
}

func (a *whyAgent) Explain(context.Context, *nodestate.State, why.Explainer) (policy.Explanation, bool, error) {
	return policy.Explanation{Known: true, Allow: true}, true, nil
}

func (a *whyAgent) DataPlane() why.DataPlane { return a.plane }
func (a *whyAgent) LinkAddress() string      { return a.mac }

// answersWhy lets a driver's process answer at the socket that its environment names, weir why and
// questions about the flows of virtual machines. The function that it returns is to be called with
// each state that was applied.
func answersWhy(plane interface {
	why.DataPlane
	vmflows.DataPlane
}) func(*nodestate.State) {
	path := os.Getenv("WEIR_TEST_WHY")
	if path == "" {
		return func(*nodestate.State) {}
	}
	_ = os.Remove(path) // of the process before
	l, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		panic(err)
	}
	a := &whyAgent{plane: plane, mac: eth0.HardwareAddr.String()}
	mux := http.NewServeMux()
	mux.Handle("/", &why.Engine{Node: os.Getenv("WEIR_TEST_NODE"), Agent: a})
	machines := movedMachines{a}
	flows := vmflows.Server{Plane: plane, Machines: machines, State: machines.state, Log: slog.Default()}
	for pattern, answer := range flows.Questions() {
		mux.HandleFunc(pattern, answer)
	}
	go func() { panic(http.Serve(l, mux)) }()
	return func(s *nodestate.State) {
		a.mu.Lock()
		a.state = s
		a.mu.Unlock()
	}
}

// explains starts a node's driver anew as one that answers.
func (n *node) explains() {
	n.driver.kill()
	n.driver.why = filepath.Join(n.lan.t.TempDir(), "why")
	n.driver.start()
}

// driverClient asks a node's driver that explains.
func (n *node) driverClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", n.driver.why)
	}}}
}

// whyHere asks a node alone. What its answer warns of is not looked at: the explanation of policy
// is the test's, which knows no objects.
func (n *node) whyHere(q whywire.Request) (a whywire.Answer) {
	t := n.lan.t
	t.Helper()
	body, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	c := n.driverClient()
	r, err := c.Post("http://node"+whywire.Path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r.Body)
	r.Body.Close()
	if r.StatusCode != http.StatusOK || err != nil || json.Unmarshal(text, &a) != nil {
		t.Fatalf("%s to %s, node %s: %s, %v: %s", q.Source, q.Destination, n.name, r.Status, err, text)
	}
	return a
}

// why asks a node, and then each that the packet is sent on to.
func (l *lan) why(n *node, q whywire.Request) (out []whywire.Answer) {
	l.t.Helper()
	for len(out) < 4 {
		a := n.whyHere(q)
		for _, w := range a.Warnings {
			l.t.Errorf("%s to %s, node %s: in doubt: %s", q.Source, q.Destination, n.name, w)
		}
		out = append(out, a)
		if a.Next == nil {
			break
		}
		q.Hook, q.Received = "", &a.Next.Handover
		for _, other := range l.nodes {
			if other.name == a.Next.Node {
				n = other
			}
		}
	}
	return out
}

// waysIn are the ways by which packets of another node came in by a node's uplink since it was last
// asked, in the words of answers: "VXLAN", "IP in IP", "WireGuard", "direct". Those that are about
// neighbours are left out.
func (w *wire) waysIn(from *node, vxlan uint16) map[string]bool {
	buf := make([]byte, 1<<16)
	out := map[string]bool{}
	for {
		k, sender, err := unix.Recvfrom(w.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return out
		}
		if err != nil {
			w.t.Fatalf("reading a frame: %v", err)
		}
		f := buf[:k]
		if l, ok := sender.(*unix.SockaddrLinklayer); !ok || l.Pkttype != unix.PACKET_HOST || k < 14+40 || [6]byte(f[6:12]) != from.mac {
			continue
		}
		var proto byte
		var l4 []byte
		switch binary.BigEndian.Uint16(f[12:]) {
		case unix.ETH_P_IP:
			proto, l4 = f[23], f[34:]
		case unix.ETH_P_IPV6:
			proto, l4 = f[20], f[54:]
		}
		switch {
		case proto == unix.IPPROTO_IPIP:
			out[whywire.IPIP] = true
		case proto == unix.IPPROTO_UDP && binary.BigEndian.Uint16(l4[2:]) == vxlan:
			out[whywire.VXLAN] = true
		case proto == unix.IPPROTO_UDP && (binary.BigEndian.Uint16(l4[2:]) == model.DefaultSettings().WireGuard.IPv4.Port ||
			binary.BigEndian.Uint16(l4[2:]) == model.DefaultSettings().WireGuard.IPv6.Port):
			out["WireGuard"] = true
		case proto == unix.IPPROTO_UDP || proto == unix.IPPROTO_TCP:
			out["direct"] = true
		}
	}
}

// TestWhyModes: `weir why` says by which way a packet goes to another node, and each node that gets
// it takes it; what the kernel sends then goes by that way, and by no other.
func TestWhyModes(t *testing.T) { inBoth(t, testWhyModes) }

// whyFixture is one whose nodes answer, and are behind a router from each other.
func whyFixture(t *testing.T, fam family) (f *fixture, at *wire) {
	f = newFixture(t, fam)
	f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
	f.service("far", "10.96.0.2", 30002, f.c)
	for _, n := range f.nodes {
		n.explains()
	}
	f.routed = true
	f.apply()
	return f, newWire(t, f.n2.netns, "eth0")
}

// saysHow asks about packets to another node in a mode, and sends them.
func (f *fixture) saysHow(t *testing.T, at *wire, mode, way string) {
	t.Helper()
	fam := f.family
	f.apply()
	for _, q := range []struct {
		what, from, to, hook string
		port                 uint16
		real                 func() string
		sees                 string
	}{
		{"pod to pod", "10.244.1.2", "10.244.2.2", whywire.FromWorkload, 8080, func() string { return f.a.reaches("c", "tcp", f.c.at("8080")) }, "10.244.1.2"},
		{"pod to Service", "10.244.1.2", "10.96.0.2", whywire.FromWorkload, 80, func() string { return f.a.reaches("c", "tcp", "10.96.0.2:80") }, "10.244.1.2"},
		{"node to pod", "172.30.0.8", "10.244.2.2", whywire.ToUplink, 8080, func() string { return f.n1.reaches("c", "tcp", f.c.at("8080")) }, "172.30.0.8"},
		{"client to a node port", "172.30.0.55", "172.30.0.8", whywire.FromUplink, 30002, func() string { return f.client.reaches("c", "tcp", "172.30.0.8:30002") }, "172.30.0.55"},
	} {
		what := mode + ", " + q.what
		answers := f.why(f.n1, whywire.Request{Hook: q.hook, Source: netip.MustParseAddr(fam.addr(q.from)), Destination: netip.MustParseAddr(fam.addr(q.to)),
			Protocol: model.ProtocolTCP, SourcePort: 50000, Port: q.port})
		first, last := answers[0].Outcome, answers[len(answers)-1].Outcome
		if len(answers) != 2 || first.Verdict != whywire.SentOn || last.Verdict != whywire.Delivered || answers[1].Outcome.Path != "local" {
			t.Errorf("%s: %+v, %+v", what, first, last)
			continue
		}
		said := first.Tunnel
		switch {
		case first.Encrypted != "":
			said = "WireGuard"
		case first.Path == "direct":
			said = "direct"
		}
		if said != way || first.Route == nil {
			t.Errorf("%s: it goes %s by %v, want %s: %s", what, said, first.Route, way, first.Text)
			continue
		}
		if first.Encrypted != "" && (first.Tunnel != whywire.VXLAN || first.Encrypted != f.n1.cryptDevice(fam == ipv6)) || way != "direct" && !strings.Contains(first.Text, way) {
			t.Errorf("%s: %+v", what, first)
		}
		at.waysIn(f.n1, f.cluster.Settings.VXLANPort)
		want(t, what, q.real(), q.sees)
		if seen := at.waysIn(f.n1, f.cluster.Settings.VXLANPort); len(seen) != 1 || !seen[way] {
			t.Errorf("%s: packets went by %v, and the answer is %s", what, seen, way)
		}
	}
}

func testWhyModes(t *testing.T, fam family) {
	f, at := whyFixture(t, fam)
	play := func(mode, way string) {
		t.Helper()
		f.saysHow(t, at, mode, way)
	}
	f.routed = false
	play("one link", "direct")
	f.routed = true
	f.encapsulate(model.EncapAlways)
	play("VXLAN", whywire.VXLAN)
	if fam == ipv4 {
		way := whywire.IPIP
		if has, _ := hasIPIP(t); f.dataplane() == "nft" && !has {
			way = whywire.VXLAN // TestIPIPWhy is where it has
		}
		f.ipip(model.EncapAlways)
		play("IP in IP", way)
		f.encapsulate(model.EncapNever)
	}
	for _, n := range f.nodes {
		n.crypt()
	}
	f.apply()
	set := &f.cluster.Settings.WireGuard
	set.IPv4.Enabled, set.IPv6.Enabled = fam == ipv4, fam == ipv6
	f.apply()
	for _, n := range f.nodes {
		n.publishes()
	}
	f.podsReachEachOther(t) // the devices know each other now
	play("WireGuard", "WireGuard")

	f.saysHowNodes(t)

	// A packet that comes in clear from a node with a key is not taken, and weir why says so.
	q := whywire.Request{Source: netip.MustParseAddr(fam.addr("10.244.1.2")), Destination: netip.MustParseAddr(fam.addr("10.244.2.2")), Protocol: model.ProtocolTCP, SourcePort: 50000, Port: 8080, Hook: whywire.FromWorkload}
	answers := f.why(f.n1, q)
	q.Hook, q.Received = "", &answers[0].Next.Handover
	q.Received.Encrypted = false
	if a := f.why(f.n2, q); a[0].Outcome.Verdict != whywire.Dropped || !strings.Contains(a[0].Outcome.Text, wireguard.Table) {
		t.Errorf("a packet in clear of a node with a key: %+v", a[0].Outcome)
	}
}

// saysHowNodes asks about what nodes exchange where that is encrypted, but for some ports.
func (f *fixture) saysHowNodes(t *testing.T) {
	t.Helper()
	f.cluster.Settings.WireGuard.Hosts = true
	f.apply()
	ports := map[uint16]bool{9000: true, 6443: false}
	if f.dataplane() == "nft" {
		delete(ports, 6443) // the walk through rules asks for routes without ports
	}
	for port, encrypted := range ports {
		answers := f.why(f.n1, whywire.Request{Hook: whywire.ToUplink, Source: netip.MustParseAddr(f.family.addr("172.30.0.8")), Destination: netip.MustParseAddr(f.family.addr("172.30.0.9")),
			Protocol: model.ProtocolTCP, SourcePort: 50000, Port: port})
		first, last := answers[0].Outcome, answers[len(answers)-1].Outcome
		if len(answers) != 2 || first.Verdict != whywire.SentOn || last.Verdict != whywire.Delivered || (first.Encrypted != "") != encrypted {
			t.Errorf("node to node, port %d: %+v, %+v", port, first, last)
		}
	}
	f.cluster.Settings.WireGuard.Hosts = false
	f.apply()
}

// TestIPIPWhy is TestWhyModes for IP in IP with nftables, where the kernel has the device.
func TestIPIPWhy(t *testing.T) {
	for _, name := range []string{"nft-IPv4", "mixed-IPv4"} {
		t.Run(name, func(t *testing.T) {
			needIPIP(t)
			f, at := whyFixture(t, ipv4)
			f.ipip(model.EncapAlways)
			f.saysHow(t, at, "IP in IP", whywire.IPIP)
		})
	}
}

// TestWhyLearned: `weir why` names the route that weir-bgp wrote, by which a pod's packets leave
// the cluster, and they go to that router. A route of somebody else's is not taken for one.
func TestWhyLearned(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ebpf-both", "nft-both"} {
		t.Run(name, testWhyLearned)
	}
}

func testWhyLearned(t *testing.T) {
	f := newFixture(t, ipv6)
	for name, p := range f.cluster.Pools {
		without := *p
		without.NATOutgoing = false
		f.cluster.Pools[name] = &without
	}
	f.n1.explains()
	f.apply()
	at, out := newWire(t, f.client.netns, "eth0"), newWire(t, f.prefix+"-a", "eth0")
	for i, prefix := range []string{"198.51.100.0/24", "2001:db8:7::/64"} {
		far, via, pod := netip.MustParsePrefix(prefix).Addr().Next(), f.pairOf(f.client.addr)[i], f.a.local.Addrs[i]
		for protocol, by := range map[int]string{88: "weir-bgp", 4: "static"} {
			run(t, "ip -n %s route replace %s via %s dev eth0 proto %d", f.n1.netns, prefix, via, protocol)
			f.apply()
			a := f.why(f.n1, whywire.Request{Hook: whywire.FromWorkload, Source: pod, Destination: far, Protocol: model.ProtocolUDP, SourcePort: 6000, Port: 7777})
			o, want := a[0].Outcome, whywire.Route{Prefix: prefix, Via: via.String(), Interface: "eth0", By: by, Learned: protocol == 88}
			if len(a) != 1 || o.Verdict != whywire.Left || o.Route == nil || *o.Route != want {
				t.Errorf("%s: %+v by %v, want %v", by, o, o.Route, &want)
			}
			text := prefix + " by " + by
			await.That(t, "what is sent to "+text+" reaches the router", func() error {
				out.send(datagram(t, out.mac, parseMAC("ee:ee:ee:ee:ee:ee"), pod, far, text))
				if !at.saw(text) {
					return errors.New("it has not")
				}
				return nil
			})
			run(t, "ip -n %s route del %s proto %d", f.n1.netns, prefix, protocol)
		}
	}
}
