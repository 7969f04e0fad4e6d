// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// What a connection pays on one node: BenchmarkConnect opens connections of TCP, asks, answers and
// closes them, from namespace to namespace by nodes with the tables of BenchmarkFilterChains. Both
// ends are in one thread, so what is timed is work alone.

const (
	benchVIP, benchPort         = "10.96.0.9", 8080
	benchFarPort, benchNearPort = 30002, 30003
)

// servicesAlone has the structure of kube-proxy's tables (pkg/proxy/nftables): filters look at what
// is new, Services are maps of verdicts, each with a chain, and so are endpoints; a mark says what
// is masqueraded.
const servicesAlone = `table ip services-alone {
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-nodeports { type inet_proto . inet_service : verdict; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	set cluster-ips { type ipv4_addr; elements = { 10.96.0.8, 10.96.0.9 } }
	set nodeport-ips { type ipv4_addr; elements = { 172.30.0.8 } }
	chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
	chain masquerading { meta mark and 0x4000 == 0 return; meta mark set meta mark xor 0x4000; masquerade fully-random; }
	chain endpoint-far { ip saddr 10.244.2.2 jump mark-for-masquerade; meta l4proto tcp dnat to 10.244.2.2:8080; }
	chain endpoint-near { ip saddr 10.244.1.2 jump mark-for-masquerade; meta l4proto tcp dnat to 10.244.1.2:8080; }
	chain service-far { ip daddr 10.96.0.9 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade; numgen random mod 1 vmap { 0 : goto endpoint-far }; }
	chain service-near { ip daddr 10.96.0.8 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade; numgen random mod 1 vmap { 0 : goto endpoint-near }; }
	chain external-far { jump mark-for-masquerade; goto service-far; }
	chain external-near { jump mark-for-masquerade; goto service-near; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain cluster-ips-check { ip daddr @cluster-ips reject; ip daddr { 10.96.0.0/16 } drop; }
	chain filter-prerouting { type filter hook prerouting priority -110; ct state new jump firewall-check; }
	chain filter-input { type filter hook input priority -110; ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check; }
	chain filter-forward { type filter hook forward priority -110; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
	chain filter-output { type filter hook output priority -110; ct state new jump service-endpoints-check; ct state new jump firewall-check; }
	chain filter-output-post-dnat { type filter hook output priority -90; ct state new jump cluster-ips-check; }
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
add element ip services-alone service-ips { 10.96.0.9 . tcp . 80 : goto service-far, 10.96.0.8 . tcp . 80 : goto service-near }
add element ip services-alone service-nodeports { tcp . 30002 : goto external-far, tcp . 30003 : goto external-near }
`

// weirWithout are changes of Weir's table that leave a group of its chains out, as far as what is
// measured goes its way all the same: what is cheaper with one is what the group takes, of open
// flows and of those that begin.
var weirWithout = map[string]string{
	"weir-rules":        "", // routing rules
	"weir-trust":        "", // accept_local of the pod's interface
	"weir-thousand":     "", // nothing: it has the routing rules of a thousand nodes more
	"weir-from-network": "flush chain ip weir from-network; delete chain ip weir from-network",
	"weir-admit":        "flush chain ip weir admit; delete chain ip weir admit", // of open flows alone: without it none is translated rightly
	"weir-forwarded":    "flush chain ip weir forwarded; delete chain ip weir forwarded; flush chain ip weir received; delete chain ip weir received",
	"weir-translate":    "flush chain ip weir translate; flush chain ip weir translate-own",
	"weir-begin":        "flush chain ip weir admit-pod; flush chain ip weir admit-new; flush chain ip weir sent-new; add rule ip weir sent-new goto judge-new",
	"weir-shares":       "flush chain ip weir pod-begins; flush chain ip weir new-neighbour",
	"weir-judge":        "flush chain ip weir judge-new; add rule ip weir judge-new goto judged",
	"weir-leave":        "flush chain ip weir leave",
}

// BenchmarkConnect says for each table and path what one connection takes; the client's and the
// server's own work is in it.
func BenchmarkConnect(b *testing.B) {
	sites := benchSites(b)
	for _, s := range sites {
		for _, in := range []netns.NsHandle{s.pod, s.node, s.other, s.client} {
			if err := manyConnections(in); err != nil {
				b.Fatal(err)
			}
		}
		if err := errors.Join(netns.Set(s.other), nftRun(handedOnTo)); err != nil {
			b.Fatal(err)
		}
	}
	pod := func(s *benchSite) netns.NsHandle { return s.pod }
	node := func(s *benchSite) netns.NsHandle { return s.node }
	other := func(s *benchSite) netns.NsHandle { return s.other }
	client := func(s *benchSite) netns.NsHandle { return s.client }
	for _, path := range []struct {
		name     string
		from, to func(*benchSite) netns.NsHandle
		server   string
		asked    string
		port     int
		services bool
		handed   bool
	}{
		{"pod to another node", pod, other, benchFar, benchFar, benchPort, false, false},
		{"another node to pod", other, pod, benchPod, benchPod, benchPort, false, false},
		{"node to another node", node, other, benchOther, benchOther, benchPort, false, false},
		{"another node to node", other, node, benchNode, benchNode, benchPort, false, false},
		{"pod to Service there", pod, other, benchFar, benchVIP, 80, true, false},
		{"node to Service there", node, other, benchFar, benchVIP, 80, true, false},
		{"client to NodePort here", client, pod, benchPod, benchNode, benchNearPort, true, false},
		{"client to NodePort there", client, other, benchFar, benchNode, benchFarPort, true, true},
	} {
		b.Run(strings.ReplaceAll(path.name, " ", "-"), func(b *testing.B) {
			oneThread(b)
			servers := map[string]int{}
			for _, t := range benchTables {
				if path.services && t == "none" {
					continue
				}
				fd, err := listen(path.to(sites[t]), path.server)
				if err != nil {
					b.Fatal(t, err)
				}
				defer unix.Close(fd)
				servers[t] = fd
			}
			inTurns(b, "connection", func(t string) float64 {
				if servers[t] == 0 || t == "weir-rules" && path.handed || t == "weir-translate" && path.services {
					return 0
				}
				if err := netns.Set(path.from(sites[t])); err != nil {
					b.Fatal(err)
				}
				const turn = 30
				begin := time.Now()
				for range turn {
					if err := exchange(servers[t], path.asked, path.port); err != nil {
						b.Fatal(t, err)
					}
				}
				return float64(time.Since(begin).Nanoseconds()) / turn
			})
			for _, s := range sites {
				if err := errors.Join(netns.Set(s.node), netlink.ConntrackTableFlush(netlink.ConntrackTable), netns.Set(s.other),
					netlink.ConntrackTableFlush(netlink.ConntrackTable)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// handedOnTo translates on the other node what this one hands on.
const handedOnTo = `table ip handed-on {
	chain before { type nat hook prerouting priority -100; ip daddr 172.30.0.8 tcp dport 30002 dnat to 10.244.2.2:8080; }
}`

// manyConnections lets a namespace open tens of thousands.
func manyConnections(in netns.NsHandle) error {
	if err := netns.Set(in); err != nil {
		return err
	}
	_, err := kernel.SetSysctl(1, "net", "ipv4", "tcp_tw_reuse")
	_, err2 := kernel.SetSysctl(2, "net", "ipv4", "tcp_fin_timeout")
	return errors.Join(err, err2)
}

func listen(in netns.NsHandle, a string) (int, error) {
	if err := netns.Set(in); err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, err
	}
	return fd, errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, &unix.SockaddrInet4{Port: benchPort, Addr: addr(a).As4()}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}), unix.Listen(fd, 16))
}

// connection opens one from a client in this namespace.
func connection(server int, a string, port int) (client, far int, err error) {
	client, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		if err != nil {
			unix.Close(client)
		}
	}()
	limit := unix.Timeval{Sec: 2}
	if err := errors.Join(unix.SetsockoptTimeval(client, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit), unix.SetsockoptTimeval(client, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)); err != nil {
		return 0, 0, err
	}
	err = unix.Connect(client, &unix.SockaddrInet4{Port: port, Addr: addr(a).As4()})
	for err == unix.EINTR || err == unix.EALREADY { // signals of the Go runtime
		err = unix.Connect(client, &unix.SockaddrInet4{Port: port, Addr: addr(a).As4()})
	}
	if err != nil && err != unix.EISCONN {
		return 0, 0, fmt.Errorf("connecting: %w", err)
	}
	if far, _, err = unix.Accept(server); err != nil {
		return 0, 0, fmt.Errorf("accepting: %w", err)
	}
	return client, far, nil
}

// exchange is one connection, of a client in this namespace, which closes first.
func exchange(server int, a string, port int) error {
	client, far, err := connection(server, a, port)
	if err != nil {
		return err
	}
	defer unix.Close(client)
	defer unix.Close(far)
	var buf [64]byte
	for _, ends := range [][2]int{{client, far}, {far, client}} {
		if _, err := unix.Write(ends[0], buf[:]); err != nil {
			return fmt.Errorf("sending: %w", err)
		}
		if n, err := unix.Read(ends[1], buf[:]); n != len(buf) {
			return fmt.Errorf("%d bytes arrived: %w", n, err)
		}
	}
	if err := unix.Shutdown(client, unix.SHUT_WR); err != nil {
		return err
	}
	_, err = unix.Read(far, buf[:])
	return err
}
