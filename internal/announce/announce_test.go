// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/nettest"
)

var mac = net.HardwareAddr{2, 0, 0x5e, 0, 0x53, 1}

func TestFrames(t *testing.T) {
	for want, got := range map[string][]byte{
		"ffffffffffff" + "02005e005301" + "0806" + "0001080006040001" + "02005e005301" + "c0000201" + "000000000000" + "c0000201": announcement(netip.MustParseAddr("192.0.2.1"), mac),
		"333300000001" + "02005e005301" + "86dd" + "6000000000203aff" + "20010db8000000000000000000000001" + "ff020000000000000000000000000001" +
			"8800" + "482a" + "20000000" + "20010db8000000000000000000000001" + "0201" + "02005e005301": advertisement(netip.MustParseAddr("2001:db8::1"), mac),
	} {
		if hex.EncodeToString(got) != want {
			t.Errorf("got  %x\nwant %s", got, want)
		}
	}
}

func TestRepeatsAndRefreshes(t *testing.T) {
	clock := time.Unix(1e9, 0)
	var sent []string
	a := New(Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Links: func() []Link {
		return []Link{{Index: 1, Name: "eth0", MAC: mac, Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
			{Index: 2, Name: "eth1", MAC: mac, Subnets: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}}
	}})
	a.now = func() time.Time { return clock }
	a.send = func(l Link, addr netip.Addr) error {
		sent = append(sent, fmt.Sprintf("%ds %s %s", int(clock.Unix()-1e9), l.Name, addr))
		return nil
	}
	one, far := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1")
	a.Update(map[netip.Addr]bool{one: true, far: true}, nil)
	for range 40 {
		a.announce()
		clock = clock.Add(time.Second)
	}
	if got := strings.Join(sent, "; "); got != "0s eth0 192.0.2.1; 1s eth0 192.0.2.1; 3s eth0 192.0.2.1; 33s eth0 192.0.2.1" {
		t.Error(got)
	}
	sent = nil
	a.Update(nil, nil)
	a.announce()
	a.Update(map[netip.Addr]bool{one: true}, nil)
	a.announce()
	if len(sent) != 1 {
		t.Errorf("taken over again: %v", sent)
	}
	// Many at once go out in portions.
	many := map[netip.Addr]bool{}
	for i := range 3*burst - 10 {
		many[netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})] = true
	}
	a.Update(many, nil)
	sent = nil
	a.announce()
	if len(sent) != burst {
		t.Errorf("%d sent at once", len(sent))
	}
}

func sh(t *testing.T, format string, args ...any) string {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	out, err := exec.Command("sh", "-ec", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return strings.TrimSpace(string(out))
}

// onALink is a link between two namespaces. On the left one an Announcer works.
type onALink struct {
	t           *testing.T
	left, right string
	mac         net.HardwareAddr // of the left one
	a           *Announcer
	mu          sync.Mutex
	silent      map[netip.Addr]bool
}

var links int

func newOnALink(t *testing.T) *onALink {
	t.Helper()
	nettest.NeedRoot(t, "making network namespaces")
	links++
	l := &onALink{t: t, left: fmt.Sprintf("wa%d-%dl", os.Getpid(), links), right: fmt.Sprintf("wa%d-%dr", os.Getpid(), links)}
	for _, ns := range []string{l.left, l.right} {
		sh(t, "ip netns add %s", ns)
		t.Cleanup(func() { sh(t, "ip netns del %s", ns) })
	}
	sh(t, "ip link add eth0 netns %s type veth peer name eth0 netns %s", l.left, l.right)
	for i, ns := range []string{l.left, l.right} {
		sh(t, "ip -n %s addr add 192.0.2.%d/24 dev eth0; ip -n %s addr add 2001:db8::%d/64 dev eth0 nodad; ip -n %s link set eth0 up", ns, i+1, ns, i+1, ns)
	}
	var err error
	if l.mac, err = net.ParseMAC(sh(t, "ip netns exec %s cat /sys/class/net/eth0/address", l.left)); err != nil {
		t.Fatal(err)
	}
	return l
}

// start makes an Announcer, which stop ends as the end of an agent does.
func (l *onALink) start() (stop func()) {
	l.t.Helper()
	var index int
	fmt.Sscan(sh(l.t, "ip netns exec %s cat /sys/class/net/eth0/ifindex", l.left), &index)
	subnets := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}
	l.a = New(Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Links:  func() []Link { return []Link{{Index: index, Name: "eth0", MAC: l.mac, Subnets: subnets}} },
		Silent: func(s map[netip.Addr]bool) { l.mu.Lock(); l.silent = s; l.mu.Unlock() }})
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and the namespace with it
		fd, err := unix.Open("/run/netns/"+l.left, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			err = l.a.Run(ctx)
		}
		done <- err
	}()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Error(err)
		}
	})
}

func (l *onALink) isSilent(a netip.Addr, want bool) func() bool {
	return func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.silent[a] == want }
}

// within fails the test unless something becomes true.
func (l *onALink) within(what string, ok func() bool) {
	l.t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > await.Patience {
			l.t.Fatalf("%s: not yet; neighbours of the left one: %s", what, sh(l.t, "ip -n %s neigh", l.left))
		}
	}
}

// The right one hears that the left one takes an address over, and the left one notices when the
// right one is gone.
func TestOnALink(t *testing.T) {
	for _, family := range []struct{ name, taken, other, mute, unmute string }{
		{"IPv4", "192.0.2.77", "192.0.2.2", "link set eth0 arp off", "link set eth0 arp on"},
		{"IPv6", "2001:db8::77", "2001:db8::2", "addr del 2001:db8::2/64 dev eth0", "addr add 2001:db8::2/64 dev eth0 nodad"},
	} {
		t.Run(family.name, func(t *testing.T) {
			l := newOnALink(t)
			// What the right one knows of the address is old.
			sh(t, "ip -n %s neigh add %s lladdr 02:00:00:00:00:99 dev eth0 nud stale", l.right, family.taken)
			defer l.start()()
			other := netip.MustParseAddr(family.other)
			l.a.Update(map[netip.Addr]bool{netip.MustParseAddr(family.taken): true}, map[netip.Addr][6]byte{other: {}})
			l.within("the announcement", func() bool {
				return strings.Contains(sh(t, "ip -n %s neigh show %s", l.right, family.taken), l.mac.String())
			})
			l.within("the watched one is known", func() bool {
				return strings.Contains(sh(t, "ip -n %s neigh show %s", l.left, family.other), "lladdr")
			})
			time.Sleep(5 * time.Second)
			if !l.isSilent(other, false)() {
				t.Error("one that answers counts as silent")
			}
			sh(t, "ip -n %s %s", l.right, family.mute)
			l.within("silence", l.isSilent(other, true))
			sh(t, "ip -n %s %s", l.right, family.unmute)
			l.within("coming back", l.isSilent(other, false))
		})
	}
}

// TestHostileWatched: what the link shows of the watched: of one at whose address another machine
// answers nothing; and one that was found silent is still so when it is watched again.
func TestHostileWatched(t *testing.T) {
	hostile.Record(t, "a node claims another machine's address on a link, and is taken for one that answers there", hostile.Node, hostile.ControlPlane, hostile.Both)
	hostile.Record(t, "a node that is found to be silent on a link is chosen anew each time that it comes back", hostile.Node, hostile.ControlPlane, hostile.Both)
	l := newOnALink(t)
	theirs, err := net.ParseMAC(sh(t, "ip netns exec %s cat /sys/class/net/eth0/address", l.right))
	if err != nil {
		t.Fatal(err)
	}
	defer l.start()()
	for family, at := range map[string][2]string{"IPv4": {"192.0.2.2", "192.0.2.9"}, "IPv6": {"2001:db8::2", "2001:db8::9"}} {
		there, nobody := netip.MustParseAddr(at[0]), netip.MustParseAddr(at[1])
		knows := func(a netip.Addr, want string) func() bool {
			return func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				silent, known := l.silent[a]
				return fmt.Sprint(known, silent) == want
			}
		}
		l.a.Update(nil, map[netip.Addr][6]byte{there: [6]byte(theirs), nobody: {2, 9}})
		l.within(family+": the node is found, and nobody else", func() bool { return knows(there, "true false")() && knows(nobody, "true true")() })
		l.a.Update(nil, map[netip.Addr][6]byte{there: {2, 9}})
		l.within(family+": another machine is not the node", knows(there, "false false"))
		time.Sleep(3 * tick)
		if !knows(nobody, "true true")() || !knows(there, "false false")() {
			t.Errorf("%s: known later: %v", family, l.silent)
		}
		l.a.Update(nil, nil)
	}
}

// An uplink receives what neighbours ask for announced addresses, also when no agent runs any more.
func TestGroups(t *testing.T) {
	l := newOnALink(t)
	one, two := netip.MustParseAddr("2001:db8::77"), netip.MustParseAddr("2001:db8::1:78")
	has := func(words ...string) func() bool {
		return func() bool {
			list := sh(t, "ip -n %s maddr show dev eth0", l.left)
			for _, w := range words {
				name, absent := strings.CutPrefix(w, "!")
				if strings.Contains(list, name) == absent {
					return false
				}
			}
			return true
		}
	}
	stop := l.start()
	defer stop()
	l.a.Update(map[netip.Addr]bool{one: true, two: true, netip.MustParseAddr("2001:db9::79"): true, netip.MustParseAddr("192.0.2.77"): true}, nil)
	l.within("both groups", has("inet6 ff02::1:ff00:77", "33:33:ff:00:00:77", "inet6 ff02::1:ff01:78", "33:33:ff:01:00:78"))
	if !has("!ff00:79", "!33:33:ff:00:00:79")() {
		t.Error("a group for an address that is on no link")
	}
	l.a.Update(map[netip.Addr]bool{one: true}, nil)
	l.within("one group", has("inet6 ff02::1:ff00:77", "33:33:ff:00:00:77", "!ff01:78", "!33:33:ff:01:00:78"))
	stop()
	l.within("the membership ends, the interface still receives", has("!ff00:77", "33:33:ff:00:00:77"))
	// The next agent.
	defer l.start()()
	l.a.Update(map[netip.Addr]bool{one: true}, nil)
	l.within("again", has("inet6 ff02::1:ff00:77", "33:33:ff:00:00:77"))
	l.a.Update(nil, nil)
	l.within("none", has("!ff00:77", "!33:33:ff:00:00:77"))
}
