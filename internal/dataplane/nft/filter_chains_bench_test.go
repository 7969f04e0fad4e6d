// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// What a packet of an open flow pays on one node for its tables: BenchmarkFilterChains sends
// datagrams of one flow from namespace to namespace, by a node that has none, what a table for
// Services alone takes that looks at new flows only (as kube-proxy's does), and Weir's. They take
// turns of 500; the figures are the tenth percentiles of 201 turns, for others use the machine,
// too.

// benchTables are what nodes are compared by.
var benchTables = []string{"none", "services", "weir"}

// WEIR_PASSAGE names others, separated by commas: a name of weirWithout, or a file of nft's, a
// node's table of before for one.
func init() {
	if more := os.Getenv("WEIR_PASSAGE"); more != "" {
		benchTables = append(benchTables, strings.Split(more, ",")...)
	}
}

const (
	benchPod, benchNode, benchFar = "10.244.1.2", "172.30.0.8", "10.244.2.2"
	benchOther, benchClient       = "172.30.0.9", "172.30.1.100"
)

// benchSite is a node between a pod, another node and a client outside.
type benchSite struct{ pod, node, other, client netns.NsHandle }

// BenchmarkFilterChains says for each table and path what one datagram takes; the sender's and the
// receiver's own work is in it.
func BenchmarkFilterChains(b *testing.B) {
	sites := benchSites(b)
	for _, path := range []struct {
		name, from, to string
		ends           func(s *benchSite) (from, to netns.NsHandle)
	}{
		{"pod to another node", benchPod, benchFar, func(s *benchSite) (a, b netns.NsHandle) { return s.pod, s.other }},
		{"another node to pod", benchFar, benchPod, func(s *benchSite) (a, b netns.NsHandle) { return s.other, s.pod }},
		{"node to another node", benchNode, benchOther, func(s *benchSite) (a, b netns.NsHandle) { return s.node, s.other }},
		{"another node to node", benchOther, benchNode, func(s *benchSite) (a, b netns.NsHandle) { return s.other, s.node }},
	} {
		b.Run(strings.ReplaceAll(path.name, " ", "-"), func(b *testing.B) {
			oneThread(b)
			flows := map[string]int{}
			for _, t := range benchTables {
				from, to := path.ends(sites[t])
				fd, done, err := openFlow(from, to, path.from, path.to)
				if err != nil {
					b.Fatal(t, err)
				}
				defer done()
				flows[t] = fd
			}
			inTurns(b, "packet", func(t string) float64 { return flood(b, flows[t], 500) })
		})
	}
}

// oneThread keeps the goroutine on one thread, which ends with it, and on one CPU.
func oneThread(b *testing.B) {
	runtime.LockOSThread()
	var one unix.CPUSet
	one.Set(0)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		b.Fatal(err)
	}
}

// benchSites makes a site for each table.
func benchSites(b *testing.B) map[string]*benchSite {
	nettest.NeedRoot(b, "making network namespaces")
	oneThread(b)
	sites := map[string]*benchSite{}
	for _, t := range benchTables {
		s, err := newBenchSite(b, t)
		if err != nil {
			b.Fatal(t, err)
		}
		sites[t] = s
	}
	return sites
}

// inTurns reports the tenth percentile of what each site's turns took, and the median of what each
// took more than the one for Services alone in the same round, which the machine's moods change
// less. Each round begins with another site.
func inTurns(b *testing.B, of string, turn func(site string) float64) {
	took, above := map[string][]float64{}, map[string][]float64{}
	for round := range 201 {
		now := map[string]float64{}
		for i := range benchTables {
			t := benchTables[(i+round)%len(benchTables)]
			now[t] = turn(t)
		}
		for t, ns := range now {
			took[t], above[t] = append(took[t], ns), append(above[t], ns-now["services"])
		}
	}
	for _, t := range benchTables {
		slices.Sort(took[t])
		slices.Sort(above[t])
		b.ReportMetric(took[t][len(took[t])/10], filepath.Base(t)+"-ns/"+of)
		b.ReportMetric(above[t][len(above[t])/2], filepath.Base(t)+"-above/"+of)
	}
}

// flood is what a packet takes, in ns.
func flood(b *testing.B, fd, n int) float64 {
	payload := make([]byte, 64)
	begin := time.Now()
	for range n {
		if _, err := unix.Write(fd, payload); err != nil {
			b.Fatal(err)
		}
	}
	return float64(time.Since(begin).Nanoseconds()) / float64(n)
}

// openFlow sends a datagram to and fro; fd is the sender's.
func openFlow(from, to netns.NsHandle, a, b string) (fd int, done func(), err error) {
	src, dst := &unix.SockaddrInet4{Port: 4000, Addr: netip.MustParseAddr(a).As4()}, &unix.SockaddrInet4{Port: 5000, Addr: netip.MustParseAddr(b).As4()}
	sock := func(in netns.NsHandle, own, peer *unix.SockaddrInet4) (int, error) {
		if err := netns.Set(in); err != nil {
			return 0, err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		return fd, errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}), unix.Bind(fd, own), unix.Connect(fd, peer))
	}
	far, err := sock(to, dst, src)
	if err != nil {
		return 0, nil, err
	}
	fd, err = sock(from, src, dst)
	if err != nil {
		return 0, nil, err
	}
	buf := make([]byte, 64)
	for _, end := range [][2]int{{fd, far}, {far, fd}, {fd, far}} {
		if _, err = unix.Write(end[0], buf[:1]); err == nil {
			_, err = unix.Read(end[1], buf)
		}
		if err != nil {
			return 0, nil, fmt.Errorf("opening the flow: %w", err)
		}
	}
	return fd, func() { unix.Close(fd); unix.Close(far) }, nil
}

// newBenchSite makes namespaces and links, and what the node between has.
func newBenchSite(b *testing.B, site string) (*benchSite, error) {
	s := &benchSite{}
	for _, h := range []*netns.NsHandle{&s.pod, &s.node, &s.other, &s.client} {
		var err error
		if *h, err = netns.New(); err != nil { // and goes there
			return nil, err
		}
		b.Cleanup(func() { h.Close() })
	}
	if err := netns.Set(s.node); err != nil {
		return nil, err
	}
	if _, err := kernel.SetSysctl(1, "net", "ipv4", "ip_forward"); err != nil {
		return nil, err
	}
	near := [3]string{"cali1", "up0", "up1"}
	macs := map[string]net.HardwareAddr{"cali1": {2, 0, 0, 0, 1, 1}, "up0": {2, 0, 0, 0, 0, 8}, "up1": {2, 0, 0, 0, 2, 8}}
	far := [3]net.HardwareAddr{{2, 0, 0, 0, 1, 2}, {2, 0, 0, 0, 0, 9}, {2, 0, 0, 0, 2, 9}}
	for i, name := range near {
		ns := []netns.NsHandle{s.pod, s.other, s.client}[i]
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: macs[name]},
			PeerName: "eth0", PeerHardwareAddr: far[i], PeerNamespace: netlink.NsFd(ns)}); err != nil {
			return nil, fmt.Errorf("making %s: %w", name, err)
		}
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: hostnet.HostDevice}, PeerName: hostnet.HostPeer}); err != nil {
		return nil, fmt.Errorf("making %s: %w", hostnet.HostDevice, err)
	}
	neigh := func(a string, mac net.HardwareAddr) string { return "neigh " + a + " " + mac.String() }
	if err := errors.Join(
		wire(s.node, "lo"), wire(s.pod, "lo"), wire(s.other, "lo"), wire(s.client, "lo"),
		wire(s.node, "cali1", "route "+benchPod, neigh(benchPod, far[0])),
		wire(s.node, "up0", "addr "+benchNode, "route "+benchOther, "route "+benchFar, neigh(benchOther, far[1]), neigh(benchFar, far[1])),
		wire(s.node, hostnet.HostPeer), wire(s.node, hostnet.HostDevice, "route "+benchVIP, neigh(benchVIP, macs["up0"])),
		wire(s.node, "up1", "route "+benchClient, neigh(benchClient, far[2])),
		wire(s.pod, "eth0", "addr "+benchPod, "route "+benchFar, neigh(benchFar, macs["cali1"]), "route "+benchVIP, neigh(benchVIP, macs["cali1"]),
			"route "+benchNode, neigh(benchNode, macs["cali1"]), "route "+benchOther, neigh(benchOther, macs["cali1"]), "route "+benchClient, neigh(benchClient, macs["cali1"])),
		wire(s.other, "eth0", "addr "+benchOther, "addr "+benchFar, "route "+benchNode, "route "+benchPod, "route "+benchClient,
			neigh(benchNode, macs["up0"]), neigh(benchPod, macs["up0"]), neigh(benchClient, macs["up0"])),
		wire(s.client, "eth0", "addr "+benchClient, "route "+benchNode, neigh(benchNode, macs["up1"])),
		netns.Set(s.node)); err != nil {
		return nil, err
	}
	return s, dress(site)
}

// dress gives the node of this namespace its tables.
func dress(site string) error {
	switch {
	case site == "services":
		return nftRun(servicesAlone)
	case strings.HasPrefix(site, "weir"):
		d, err := New(Options{Logger: slog.New(slog.DiscardHandler), NoMachine: true})
		if err != nil {
			return err
		}
		if err := d.Apply(context.Background(), benchHere(), nodestate.All()); err != nil {
			return err
		}
		return errors.Join(benchRouting(site), nftRun(weirWithout[site]))
	case site != "none":
		text, err := os.ReadFile(site)
		return errors.Join(err, benchRouting(""), nftRun(string(text)))
	}
	// Connections are tracked all the same.
	return nftRun("add site ip track; add chain ip track c { type filter hook input priority 0; }; add rule ip track c ct state invalid")
}

// nftRun gives nft a text.
func nftRun(text string) error {
	if text == "" {
		return nil
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// benchRouting is what the driver and the CNI plugin change of routing.
func benchRouting(site string) error {
	_, err := kernel.LooseReversePath("cali1")
	if strings.HasPrefix(site, "weir") && site != "weir-trust" {
		err = errors.Join(err, acceptsLocalAs("cali1"))
	}
	if site == "weir-rules" {
		return err
	}
	n := marks.NewNumbers()
	n.Follow(table.Family{}, benchState())
	number, _ := n.Of(addr(benchOther))
	up, err2 := netlink.LinkByName("up0")
	if err2 != nil {
		return err2
	}
	tables := map[uint32]int{marks.RoutedBit | uint32(number)<<marks.NodeShift: hostnet.RouteTable(number)}
	if site == "weir-thousand" {
		for i := range 1000 {
			more := i*marks.MaxNodes/1000 + 1
			tables[marks.RoutedBit|uint32(more)<<marks.NodeShift] = hostnet.RouteTable(more)
			tables[marks.RoutedBit|marks.TunnelBit|uint32(more)<<marks.NodeShift] = hostnet.TunnelRouteTable(more)
		}
	}
	direct := &netlink.Route{LinkIndex: up.Attrs().Index, Gw: addr(benchOther).AsSlice(), Flags: int(netlink.FLAG_ONLINK), Table: hostnet.RouteTable(number)}
	return errors.Join(netlink.RouteReplace(direct), hostnet.WriteRules(table.Family{}, tables), err, acceptsLocalAs("up0"))
}

// acceptsLocalAs sets accept_local of an interface, as the driver does.
func acceptsLocalAs(name string) error {
	_, err := kernel.SetSysctl(1, "net", "ipv4", "conf", name, "accept_local")
	return err
}

// benchHere is benchState with the index of the pod's interface of this namespace.
func benchHere() *nodestate.State {
	s := benchState()
	if l, err := netlink.LinkByName("cali1"); err == nil {
		v := s.Addrs[addr(benchPod)]
		v.IfIndex = l.Attrs().Index
		s.Addrs[addr(benchPod)] = v
	}
	return s
}

func benchState() *nodestate.State {
	s := small()
	s.Settings.IPv6 = false
	far := tcp(benchVIP, 80)
	s.Frontends.Set(far, nodestate.Service{ID: far})
	s.Frontends.Set(tcp("0.0.0.0", benchFarPort), nodestate.Service{ID: far, External: true})
	s.Backends.Set(far, []nodestate.Backend{{Addr: addr(benchFar), Port: benchPort}})
	near := tcp("10.96.0.8", 80)
	s.Frontends.Set(near, nodestate.Service{ID: near})
	s.Frontends.Set(tcp("0.0.0.0", benchNearPort), nodestate.Service{ID: near, External: true})
	s.Backends.Set(near, []nodestate.Backend{{Addr: addr(benchPod), Port: benchPort, Local: true}})
	return s
}

// wire sets an interface up and gives it what the words say.
func wire(in netns.NsHandle, name string, what ...string) error {
	h, err := netlink.NewHandleAt(in)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	errs := []error{h.LinkSetUp(l)}
	prefix := func(a string) *net.IPNet {
		return &net.IPNet{IP: net.ParseIP(a).To4(), Mask: net.CIDRMask(32, 32)}
	}
	for _, line := range what {
		w := strings.Fields(line)
		switch w[0] {
		case "addr":
			errs = append(errs, h.AddrAdd(l, &netlink.Addr{IPNet: prefix(w[1])}))
		case "route":
			errs = append(errs, h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: prefix(w[1]), Scope: netlink.SCOPE_LINK}))
		case "neigh":
			mac, err := net.ParseMAC(w[2])
			errs = append(errs, err, h.NeighAdd(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(w[1]), HardwareAddr: mac}))
		}
	}
	return errors.Join(errs...)
}
