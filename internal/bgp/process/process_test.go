// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// processEnv makes this program a BGP process whose files are in that folder.
const processEnv = "WEIR_TEST_BGP_PROCESS"

func TestMain(m *testing.M) {
	dir := os.Getenv(processEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := Run(ctx, Options{Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Socket: filepath.Join(dir, "s"), StateDir: dir, Every: time.Second,
		SecretsURL: os.Getenv("WEIR_TEST_SECRETS"), AccountDir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// node is the test's namespace as a node, with an agent and a BGP process.
type node struct {
	t     *testing.T
	dir   string
	agent *feed.Agent
	end   context.CancelFunc
	ended chan error
	cmd   *exec.Cmd
	log   *os.File
}

func newNode(t *testing.T) *node {
	n := &node{t: t}
	dir, err := os.MkdirTemp("/tmp", "weir-bgp-") //nolint:usetesting // a path of a socket is short
	nettest.Must(t, err)
	n.dir = dir
	n.log, err = os.Create(filepath.Join(dir, "log"))
	nettest.Must(t, err)
	t.Cleanup(func() {
		n.kill(syscall.SIGKILL)
		n.endAgent()
		if text, err := os.ReadFile(n.log.Name()); err == nil && t.Failed() {
			t.Logf("the BGP process: %s", text)
		}
		n.log.Close()
		os.RemoveAll(dir)
	})
	n.startAgent()
	return n
}

func (n *node) startAgent() {
	ctx, cancel := context.WithCancel(context.Background())
	n.agent, n.end, n.ended = &feed.Agent{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, cancel, make(chan error, 1)
	go func(a *feed.Agent, ended chan error) { ended <- a.Serve(ctx, filepath.Join(n.dir, "s")) }(n.agent, n.ended)
}

func (n *node) endAgent() {
	if n.end == nil {
		return
	}
	n.end()
	if err := <-n.ended; err != nil {
		n.t.Error(err)
	}
	n.end = nil
}

func (n *node) start(env ...string) {
	n.cmd = exec.Command("/proc/self/exe")
	n.cmd.Env = append(append(os.Environ(), processEnv+"="+n.dir), env...)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	nettest.Must(n.t, n.cmd.Start())
}

func (n *node) kill(s syscall.Signal) {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Signal(s)
	_ = n.cmd.Wait()
	n.cmd = nil
}

func (n *node) eventually(what string, f func() error) {
	n.t.Helper()
	var err error
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	n.t.Fatalf("%s: %v; status %+v", what, err, n.agent.Status())
}

// established waits until so many sessions are.
func (n *node) established(want int) {
	n.t.Helper()
	n.eventually("sessions", func() error {
		st := n.agent.Status()
		if st == nil {
			return errors.New("no status")
		}
		up := 0
		for _, p := range st.Peers {
			if p.Established() {
				up++
			}
		}
		if up != want || st.Err != "" {
			return fmt.Errorf("%d are established, want %d; %s", up, want, st.Err)
		}
		return nil
	})
}

// restored waits until all peers have sent again what a process before had learned from them.
func (n *node) restored() {
	n.t.Helper()
	n.eventually("restoration", func() error {
		if st := n.agent.Status(); st == nil || st.Restoring {
			return errors.New("it goes on")
		}
		return nil
	})
}

// kernel waits until the learned routes in the kernel are these.
func (n *node) kernel(want ...netip.Prefix) {
	n.t.Helper()
	n.eventually("learned routes", func() error {
		have := map[netip.Prefix]bool{}
		for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			found, err := netlink.RouteListFiltered(f, &netlink.Route{Protocol: fib.Protocol}, netlink.RT_FILTER_PROTOCOL)
			if err != nil {
				return err
			}
			for _, r := range found {
				a, _ := netip.AddrFromSlice(r.Dst.IP)
				bits, _ := r.Dst.Mask.Size()
				have[netip.PrefixFrom(a.Unmap(), bits)] = true
			}
		}
		for _, p := range want {
			if !have[p] {
				return fmt.Errorf("%s is missing: %v", p, have)
			}
		}
		if len(have) != len(want) {
			return fmt.Errorf("there are %v, want %v", have, want)
		}
		return nil
	})
}

func (n *node) knows(r *routertest.Router, p netip.Prefix, want bool) {
	n.t.Helper()
	n.eventually("what the router has", func() error {
		if r.Knows(p) != want {
			return fmt.Errorf("%s: %v, want %v: %s", p, !want, want, r.Ask("show route all", "show bgp ipv4 unicast", "show rib"))
		}
		return nil
	})
}

func (n *node) knowsBlocks(r *routertest.Router) {
	n.t.Helper()
	for _, b := range blocks {
		n.knows(r, b, true)
	}
}

// kept waits until the router has seen that the session ended, and keeps the node's blocks all the
// same. BIRD does not say what it keeps in this way.
func (n *node) kept(r *routertest.Router) {
	n.t.Helper()
	if r.Kind == "bird" {
		return
	}
	for _, b := range blocks {
		n.eventually("what the router keeps", func() error {
			if about := r.About(b); !r.Knows(b) || !strings.Contains(strings.ToLower(about), "stale") {
				return fmt.Errorf("%s is not kept: %s", b, about)
			}
			return nil
		})
	}
}

// eachRouter plays a test with each kind of router that has what it needs, in a namespace of its
// own.
func eachRouter(t *testing.T, play func(t *testing.T, kind string), needs ...routertest.Feature) {
	t.Parallel()
	for _, kind := range routertest.All() {
		if slices.ContainsFunc(needs, func(f routertest.Feature) bool { return !routertest.Has(kind, f) }) {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			routertest.Need(t, kind)
			if nettest.Isolated(t) {
				play(t, kind)
			}
		})
	}
}

// wayBack routes pods to the node, in the namespace of a router that leaves its kernel alone.
func wayBack(node []netip.Prefix) error {
	for i, p := range pods {
		dst := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if err := netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: node[i].Addr().AsSlice()}); err != nil {
			return err
		}
	}
	return nil
}

// The addresses of one node and one router, and what is behind them.
var (
	nodeAddrs   = prefixes("192.0.2.1/24", "2001:db8::1/64")
	routerAddrs = prefixes("192.0.2.9/24", "2001:db8::9/64")
	blocks      = prefixes("10.65.1.0/26", "fd00:65::/122")
	pods        = prefixes("10.65.1.5/32", "fd00:65::5/128")
	networks    = prefixes("203.0.113.0/24", "2001:db8:113::/64")
	behind      = prefixes("203.0.113.5/32", "2001:db8:113::5/128")
)

const nodeASN, routerASN = 64512, 64999

func routerConfig() routertest.Config {
	c := routertest.Config{ASN: routerASN, ID: routerAddrs[0].Addr(), Networks: networks}
	for i := range nodeAddrs {
		c.Neighbours = append(c.Neighbours, routertest.Neighbour{Local: routerAddrs[i].Addr(), Remote: nodeAddrs[i].Addr(), ASN: nodeASN, Waits: true})
	}
	return c
}

func nodeState() *nodestate.BGP {
	s := &nodestate.BGP{ASN: nodeASN, RouterID: nodeAddrs[0].Addr(), ListenPort: 179, Advertise: blocks, Keep: blocks, Pass: blocks}
	for i := range nodeAddrs {
		s.Sources = append(s.Sources, nodeAddrs[i].Addr())
		s.Peers = append(s.Peers, nodestate.BGPPeer{Addr: routerAddrs[i].Addr(), Name: "router", ASN: routerASN, Source: nodeAddrs[i].Addr(), Port: 179, Restart: 120})
	}
	return s
}

// wire makes the router's namespace, with what is behind it and the node.
func wire(t *testing.T) *nettest.Namespace {
	t.Helper()
	ns := nettest.New(t, "router")
	nettest.Link(t, "eth0", ns, nodeAddrs, routerAddrs)
	nettest.Must(t, nettest.Address("lo", pods...))
	ns.Do(t, "what is behind the router", func() error { return nettest.Address("lo", behind...) })
	return ns
}

// stream sends datagrams from the node's pods to what is behind the router, which answers, until
// the returned function, which says how many were sent and which have no answer.
func stream(t *testing.T, ns *nettest.Namespace) func() (sent int, lost []string) {
	t.Helper()
	var servers, clients []net.PacketConn
	for i := range pods {
		ns.Do(t, "answering", func() error {
			c, err := net.ListenPacket("udp", netip.AddrPortFrom(behind[i].Addr(), 7).String())
			servers = append(servers, c)
			return err
		})
		c, err := net.ListenPacket("udp", netip.AddrPortFrom(pods[i].Addr(), 0).String())
		nettest.Must(t, err)
		clients = append(clients, c)
	}
	for _, s := range servers {
		go func() {
			buf := make([]byte, 100)
			for {
				k, from, err := s.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = s.WriteTo(buf[:k], from)
			}
		}()
	}
	type datagram struct {
		at       time.Time
		err      error // one that the kernel refuses to send is one that is lost
		answered bool
	}
	var mu sync.Mutex
	sent, missing := make([][]datagram, len(clients)), 0
	for i, c := range clients {
		go func() {
			buf := make([]byte, 100)
			for {
				k, _, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				mu.Lock()
				if d := &sent[i][binary.BigEndian.Uint32(buf[:k])]; !d.answered {
					d.answered = true
					missing--
				}
				mu.Unlock()
			}
		}()
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				for i, c := range clients {
					mu.Lock()
					n := len(sent[i])
					sent[i] = append(sent[i], datagram{at: time.Now()})
					missing++
					mu.Unlock()
					if _, err := c.WriteTo(binary.BigEndian.AppendUint32(nil, uint32(n)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(behind[i].Addr(), 7))); err != nil {
						mu.Lock()
						sent[i][n].err = err
						mu.Unlock()
					}
				}
			}
		}
	}()
	return func() (all int, lost []string) {
		close(stop)
		<-ended
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			left := missing
			mu.Unlock()
			if left == 0 {
				break
			}
		}
		for _, c := range append(servers, clients...) {
			c.Close()
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range sent {
			all += len(sent[i])
			for n, d := range sent[i] {
				if !d.answered {
					lost = append(lost, fmt.Sprintf("%d to %s at %s (%v)", n, behind[i].Addr(), d.at.UTC().Format("15:04:05.000"), d.err))
				}
			}
		}
		return all, lost
	}
}

// A real router on the link: blocks arrive there, its networks here, both go when they are taken
// back, and neither an agent nor a BGP process that is killed loses a packet.
func TestRouter(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		ns := wire(t)
		r := routertest.Start(t, ns, kind, routerConfig())
		n := newNode(t)
		n.agent.Set(nodeState())
		n.start()
		n.established(2)
		n.kernel(networks...)
		n.knowsBlocks(r)
		answer, err := n.agent.Ask(t.Context(), feed.Ask{})
		if err != nil || answer.Err != "" || len(answer.Routes) != 4 {
			t.Errorf("the process answers %+v (%v), want 4 routes", answer, err)
		}
		n.eventually("routers keep routes", func() error {
			if st := n.agent.Status(); !st.Peers[0].GracefulRestart || !st.Peers[1].GracefulRestart {
				return errors.New("graceful restart was not agreed on")
			}
			return nil
		})
		// The kernel of the router has its routes before anything is sent.
		ns.Do(t, "routes of the router", func() error {
			if !routertest.Has(kind, routertest.Kernel) {
				return wayBack(nodeAddrs)
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
				found := 0
				for _, p := range pods {
					if got, err := netlink.RouteGet(p.Addr().AsSlice()); err == nil && len(got) > 0 {
						found++
					}
				}
				if found == len(pods) {
					return nil
				} else if time.Now().After(end) {
					return errors.New("blocks are not routed")
				}
			}
		})

		done := stream(t, ns)
		since := n.agent.Status().Peers[0].Since
		n.endAgent()
		n.startAgent() // says nothing yet
		n.established(2)
		if now := n.agent.Status().Peers[0].Since; !now.Equal(since) {
			t.Errorf("the session began at %s, and anew at %s", since, now)
		}
		n.kill(syscall.SIGKILL)
		n.kernel(networks...)
		n.kept(r)
		n.start() // from what is on disk: the agent says nothing
		n.established(2)
		n.restored()
		n.kill(syscall.SIGTERM) // as at an upgrade
		n.kept(r)
		n.start()
		n.established(2)
		n.kernel(networks...)
		n.knowsBlocks(r)
		sent, lost := done()
		if len(lost) != 0 || sent == 0 {
			t.Errorf("%d of %d packets were lost: %q", len(lost), sent, lost)
		}
		nettest.Figure(t, "BGP: packets lost while agent and process are killed and replaced", float64(len(lost)))

		// What is taken back goes, on either side.
		less := nodeState()
		less.Advertise = nil
		n.agent.Set(less)
		for _, b := range blocks {
			n.knows(r, b, false)
		}
		r.Withdraw(t, routerConfig())
		n.kernel()
		// BGP that is switched off leaves nothing.
		n.agent.Set(nil)
		n.eventually("no sessions", func() error {
			if st := n.agent.Status(); st == nil || len(st.Peers) > 0 {
				return errors.New("there are")
			}
			return nil
		})
	})
}

// Where the server has to begin anew (its router ID changes), what it had learned stays in the
// kernel until it is learned again, and what is not learned again goes.
func TestAnotherRouterID(t *testing.T) {
	routertest.Need(t, "bird")
	if !nettest.Isolated(t) {
		return
	}
	ns := wire(t)
	routertest.Start(t, ns, "bird", routerConfig())
	n := newNode(t)
	n.agent.Set(nodeState())
	n.start()
	n.established(2)
	n.kernel(networks...)

	updates, done := make(chan netlink.RouteUpdate, 100), make(chan struct{})
	nettest.Must(t, netlink.RouteSubscribe(updates, done))
	other := nodeState()
	other.RouterID = netip.MustParseAddr("192.0.2.101")
	other.Peers = other.Peers[1:]
	n.agent.Set(other)
	n.kernel(networks[1])
	close(done)
	for u := range updates {
		if u.Type == unix.RTM_DELROUTE && u.Dst != nil && u.Dst.String() == networks[1].String() {
			t.Errorf("the route to %s was taken away", u.Dst)
		}
	}
}
