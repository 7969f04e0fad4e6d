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
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// What a packet of an open flow pays on one node for its tables: BenchmarkPassage sends datagrams of one flow from namespace to namespace, by
// a node that has none, what a table for Services alone takes that looks at new flows only (as kube-proxy's does), and Weir's. They take
// turns of 1,000; the figures are the tenth percentiles of 101 turns, for others use the machine, too.

// passageTables are what nodes are compared by.
var passageTables = []string{"none", "services", "weir"}

// servicesAlone looks at what is new.
const servicesAlone = `table ip services-alone {
	map refused { type ipv4_addr . inet_proto . inet_service : verdict; }
	chain check { ip daddr . meta l4proto . th dport vmap @refused; }
	chain other { ip daddr . meta l4proto . th dport vmap @refused; }
	chain before { type filter hook prerouting priority -110; ct state new jump check; }
	chain in { type filter hook input priority -110; ct state new jump check; ct state new jump other; }
	chain on { type filter hook forward priority -110; ct state new jump check; ct state new jump other; }
	chain out { type filter hook output priority -110; ct state new jump check; ct state new jump other; }
	chain out-translated { type filter hook output priority -90; ct state new jump other; }
	chain nat-before { type nat hook prerouting priority -100; jump check; }
	chain nat-out { type nat hook output priority -100; jump check; }
	chain nat-after { type nat hook postrouting priority 100; jump check; }
}
`

const (
	passagePod, passageNode, passageFar = "10.244.1.2", "172.30.0.8", "10.244.2.2"
	passageOther                        = "172.30.0.9"
)

// passageSite is a node between a pod and another node.
type passageSite struct{ pod, node, other netns.NsHandle }

// BenchmarkPassage says for each table and way what one datagram takes; the sender's and the receiver's own work is in it.
func BenchmarkPassage(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	var one unix.CPUSet
	one.Set(0)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		b.Fatal(err)
	}
	sites := map[string]*passageSite{}
	for _, t := range passageTables {
		s, err := newPassageSite(b, t)
		if err != nil {
			b.Fatal(t, err)
		}
		sites[t] = s
	}
	for _, way := range []struct {
		name, from, to string
		ends           func(s *passageSite) (from, to netns.NsHandle)
	}{
		{"pod to another node", passagePod, passageFar, func(s *passageSite) (a, b netns.NsHandle) { return s.pod, s.other }},
		{"another node to pod", passageFar, passagePod, func(s *passageSite) (a, b netns.NsHandle) { return s.other, s.pod }},
		{"node to another node", passageNode, passageOther, func(s *passageSite) (a, b netns.NsHandle) { return s.node, s.other }},
		{"another node to node", passageOther, passageNode, func(s *passageSite) (a, b netns.NsHandle) { return s.other, s.node }},
	} {
		b.Run(strings.ReplaceAll(way.name, " ", "-"), func(b *testing.B) {
			flows := map[string]int{}
			for _, t := range passageTables {
				from, to := way.ends(sites[t])
				fd, done, err := openFlow(from, to, way.from, way.to)
				if err != nil {
					b.Fatal(t, err)
				}
				defer done()
				flows[t] = fd
			}
			took := map[string][]float64{}
			for range 101 {
				for _, t := range passageTables {
					took[t] = append(took[t], flood(b, flows[t], 1000))
				}
			}
			for _, t := range passageTables {
				slices.Sort(took[t])
				b.ReportMetric(took[t][len(took[t])/10], t+"-ns/packet")
			}
		})
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

// newPassageSite makes namespaces and links, and what the node between has.
func newPassageSite(b *testing.B, table string) (*passageSite, error) {
	s := &passageSite{}
	for _, h := range []*netns.NsHandle{&s.pod, &s.node, &s.other} {
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
	near := [2]string{"cali1", "up0"}
	macs := map[string]net.HardwareAddr{"cali1": {2, 0, 0, 0, 1, 1}, "up0": {2, 0, 0, 0, 0, 8}}
	far := [2]net.HardwareAddr{{2, 0, 0, 0, 1, 2}, {2, 0, 0, 0, 0, 9}}
	for i, name := range near {
		ns := []netns.NsHandle{s.pod, s.other}[i]
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: macs[name]},
			PeerName: "eth0", PeerHardwareAddr: far[i], PeerNamespace: netlink.NsFd(ns)}); err != nil {
			return nil, fmt.Errorf("making %s: %w", name, err)
		}
	}
	if err := errors.Join(
		wire(s.node, "lo"), wire(s.pod, "lo"), wire(s.other, "lo"),
		wire(s.node, "cali1", "route "+passagePod, "neigh "+passagePod+" "+far[0].String()),
		wire(s.node, "up0", "addr "+passageNode, "route "+passageOther, "route "+passageFar, "neigh "+passageOther+" "+far[1].String(), "neigh "+passageFar+" "+far[1].String()),
		wire(s.pod, "eth0", "addr "+passagePod, "route "+passageFar, "neigh "+passageFar+" "+macs["cali1"].String()),
		wire(s.other, "eth0", "addr "+passageOther, "addr "+passageFar, "route "+passageNode, "route "+passagePod,
			"neigh "+passageNode+" "+macs["up0"].String(), "neigh "+passagePod+" "+macs["up0"].String()),
		netns.Set(s.node)); err != nil {
		return nil, err
	}
	switch table {
	case "services":
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(servicesAlone)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
	case "weir":
		d, err := New(Options{Logger: slog.New(slog.DiscardHandler), NoMachine: true})
		if err != nil {
			return nil, err
		}
		if err := d.Apply(context.Background(), passageState(), nodestate.All()); err != nil {
			return nil, err
		}
		if err := passageRouting(); err != nil {
			return nil, err
		}
	default:
		// Connections are tracked all the same.
		cmd := exec.Command("nft", "add table ip track; add chain ip track c { type filter hook input priority 0; }; add rule ip track c ct state invalid")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
	}
	return s, nil
}

// passageRouting is what the driver and the CNI plugin change of routing.
func passageRouting() error {
	rules := gateRules()
	rules[wayRule{priority: wayRules, mark: wayBit | 1<<nodeShift, mask: wayMarked, table: wayTable + 1}] = true
	_, err := kernel.LooseReversePath("cali1")
	return errors.Join(ensureRules(family{}, rules), putFirst(family{}), err, setAcceptLocal("up0", 1))
}

func passageState() *nodestate.State {
	s := small()
	s.Settings.IPv6 = false
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
