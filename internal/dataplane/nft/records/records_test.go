// SPDX-License-Identifier: Apache-2.0

package records

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/events"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestMain runs the tests in a network namespace of their own.
func TestMain(m *testing.M) { nettest.Main(m, 0, nil) }

// family is how a pod, a Service and somebody outside are called.
type family struct{ name, pod, service, client string }

var families = []family{
	{"ip", "10.244.1.2", "10.96.0.1", "10.244.1.1"},
	{"ip6", "fd00:244::2", "fd00:96::1", "fd00:244::1"},
}

// rules lead a Service to the pod, and count its packets by themselves.
func (f family) rules(t *testing.T) {
	t.Helper()
	to := net.JoinHostPort(f.pod, "8080")
	text := fmt.Sprintf(`table %[1]s records {
		counter there { }
		counter back { }
		chain nat { type nat hook output priority -100; %[1]s daddr %[2]s tcp dport 80 dnat to %[3]s; }
		chain out { type filter hook output priority 10; tcp dport 8080 counter name there; }
		chain in { type filter hook input priority 10; tcp sport 8080 counter name back; }
	}`, f.name, f.service, to)
	nft(t, text, "-f", "-")
	t.Cleanup(func() { nft(t, "", "delete", "table", f.name, "records") })
}

func nft(t *testing.T, in string, args ...string) string {
	t.Helper()
	cmd := exec.Command("nft", args...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v: %s", args, err, out)
	}
	return string(out)
}

// counted is what a counter of rules has.
func (f family) counted(t *testing.T, name string) (c conntrack.Carried) {
	t.Helper()
	text := nft(t, "", "list", "counter", f.name, "records", name)
	at := strings.Index(text, "packets ")
	if _, err := fmt.Sscanf(text[max(at, 0):], "packets %d bytes %d", &c.Packets, &c.Bytes); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return c
}

// state has the pod, which takes TCP at port 8080 by rule 7, and the Service.
func (f family) state() *nodestate.State {
	s := nodestate.New()
	pod, set := netip.MustParseAddr(f.pod), nodestate.SetID(5)
	s.Addrs[pod] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "pod0", Ingress: nodestate.Isolation{Set: set, Rule: 6}}
	s.Policy.Set(nodestate.PolicyKey{Set: set, Head: true}, nodestate.PolicyValue{Rule: 6, Protos: nodestate.ProtoBitTCP, Lens: 1 << 16})
	s.Policy.Set(nodestate.PolicyKey{Set: set, Proto: model.ProtocolTCP, Port: 8080, Len: 16}, nodestate.PolicyValue{Allow: true, Rule: 7})
	at := nodestate.Frontend{Addr: netip.MustParseAddr(f.service), Port: 80, Proto: model.ProtocolTCP}
	s.Frontends.Set(at, nodestate.Service{ID: at})
	s.Backends.Set(at, []nodestate.Backend{{Addr: pod, Port: 8080, Local: true}})
	return s
}

// A connection to a Service is reported while it is open and when it ends; its records together
// have each packet and each byte once.
func TestEach(t *testing.T) {
	nettest.NeedRoot(t, "reading the table of connections")
	pod := nettest.New(t, "pod")
	nettest.Link(t, "pod0", pod, []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24"), netip.MustParsePrefix("fd00:244::1/64")},
		[]netip.Prefix{netip.MustParsePrefix("10.244.1.2/24"), netip.MustParsePrefix("fd00:244::2/64")})
	link, err := netlink.LinkByName("pod0")
	nettest.Must(t, err)
	for _, setting := range []string{"nf_conntrack_tcp_timeout_time_wait", "nf_conntrack_tcp_timeout_close"} {
		_, err := kernel.SetSysctl(1, "net", "netfilter", setting)
		nettest.Must(t, err)
	}
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			f.rules(t)
			service := netip.MustParseAddr(f.service)
			to := netip.PrefixFrom(service, service.BitLen())
			nettest.Must(t, netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: service.AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Bits())}}))
			var l net.Listener
			pod.Do(t, "listening", func() (err error) {
				l, err = net.Listen("tcp", net.JoinHostPort(f.pod, "8080"))
				return err
			})
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = io.Copy(c, c)
					_ = c.Close()
				}
			}()
			const interval = 20 * time.Millisecond
			r, err := Open(interval)
			nettest.Must(t, err)
			defer r.Close()
			f.play(t, r)
		})
	}
}

// play opens a connection, sends by it and closes it, and compares what r says of it with what
// rules have counted.
func (f family) play(t *testing.T, r *Reader) {
	t.Helper()
	began := time.Now()
	c, err := net.DialTimeout("tcp", net.JoinHostPort(f.service, "80"), 5*time.Second)
	nettest.Must(t, err)
	defer c.Close()
	sport := netip.MustParseAddrPort(c.LocalAddr().String()).Port()
	view := events.NewView(f.state(), 0, false)
	var sum [2]conntrack.Carried // of the original direction, of the answers
	var open int
	var end dataplane.FlowRecord
	read := func() {
		t.Helper()
		nettest.Must(t, r.Each(view, func(one dataplane.FlowRecord) {
			if one.Sport != sport || one.Proto != model.ProtocolTCP {
				return
			}
			of := &sum[0]
			if one.Reply {
				of = &sum[1]
			}
			of.Packets, of.Bytes = of.Packets+one.Packets, of.Bytes+one.Bytes
			if end = one; one.End == dataplane.FlowGoesOn {
				open++
			}
			f.check(t, one, began)
		}))
	}
	answer := make([]byte, 1000)
	for range 5 {
		_, err := c.Write(answer)
		nettest.Must(t, err)
		_, err = io.ReadFull(c, answer)
		nettest.Must(t, err)
		time.Sleep(30 * time.Millisecond)
		read()
	}
	nettest.Must(t, c.Close())
	for until := time.Now().Add(30 * time.Second); end.End == dataplane.FlowGoesOn; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the connection is over, and was not reported: %+v", end)
		}
		read()
	}
	read()
	if open < 4 {
		t.Errorf("%d records while it was open", open)
	}
	if end.End != dataplane.FlowClosed {
		t.Errorf("it is reported as %q", end.End)
	}
	for i, name := range []string{"there", "back"} {
		if want := f.counted(t, name); sum[i] != want || want.Bytes < 5000 {
			t.Errorf("%s: records say %+v, rules have counted %+v", name, sum[i], want)
		}
	}
	if lost := r.Lost(); lost.Full != 0 || lost.Begun == 0 {
		t.Errorf("lost %+v", lost)
	}
}

// check compares what does not change.
func (f family) check(t *testing.T, r dataplane.FlowRecord, began time.Time) {
	t.Helper()
	pod, service := netip.MustParseAddr(f.pod), netip.MustParseAddr(f.service)
	want := dataplane.FlowRecord{Src: netip.MustParseAddr(f.client), Dst: service, Sport: r.Sport, Dport: 80, Proto: model.ProtocolTCP,
		ToSrc: netip.MustParseAddr(f.client), ToDst: pod, ToSport: r.Sport, ToDport: 8080, Reply: r.Reply,
		Packets: r.Packets, Bytes: r.Bytes, TCPFlags: r.TCPFlags, Started: r.Started, Until: r.Until, End: r.End,
		Service: nodestate.Frontend{Addr: service, Port: 80, Proto: model.ProtocolTCP}, Backend: netip.AddrPortFrom(pod, 8080),
		Path: dataplane.PathLocal, Ingress: dataplane.EventEnd{Local: true, Rule: 7}}
	if r.Reply {
		want.Path = dataplane.PathDirect
	}
	if r != want {
		t.Errorf("the record is\n%+v, want\n%+v", r, want)
	}
	if r.Started.Before(began.Add(-time.Second)) || r.Until.Before(r.Started) || r.Until.After(time.Now().Add(time.Second)) {
		t.Errorf("it is of %s to %s", r.Started, r.Until)
	}
	if r.TCPFlags&2 == 0 {
		t.Errorf("flags %#x without SYN", r.TCPFlags)
	}
}

// What neither a pod of the node nor a Service has to do with is not reported.
func TestOthersAreNotReported(t *testing.T) {
	s := families[0].state()
	tuple := conntrack.Tuple{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 1, DstPort: 22, Proto: 6}
	for _, c := range []struct {
		name string
		dst  string
		port uint16
		is   bool
	}{{"two machines", "192.0.2.2", 22, false}, {"a pod", families[0].pod, 22, true}, {"a Service that is handed on", families[0].service, 80, true}, {"another port of a Service's address", families[0].service, 81, false}} {
		tuple.Dst, tuple.DstPort = netip.MustParseAddr(c.dst), c.port
		a := conntrack.Accounted{Entry: conntrack.Entry{Orig: tuple, Reply: tuple.Reversed()}}
		there, _, is := recordsOf(events.NewView(s, 0, false), a, time.Now(), time.Now())
		if is != c.is || there.HandOn != (c.port == 80) {
			t.Errorf("%s: reported %t, %+v", c.name, is, there)
		}
	}
	if _, _, is := recordsOf(nil, conntrack.Accounted{}, time.Now(), time.Now()); is {
		t.Error("a connection is reported before there is a state")
	}
}
