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

// In a namespace with a link to another one: the other takes the address over, and notices that we are gone.
func TestOnALink(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	left, right := fmt.Sprintf("wa%d-l", os.Getpid()), fmt.Sprintf("wa%d-r", os.Getpid())
	for _, ns := range []string{left, right} {
		sh(t, "ip netns add %s", ns)
		t.Cleanup(func() { sh(t, "ip netns del %s", ns) })
	}
	sh(t, "ip link add eth0 netns %s type veth peer name eth0 netns %s", left, right)
	sh(t, "ip -n %s addr add 192.0.2.1/24 dev eth0; ip -n %s link set eth0 up", left, left)
	sh(t, "ip -n %s addr add 192.0.2.2/24 dev eth0; ip -n %s link set eth0 up", right, right)
	// What the right one knows of the address that the left one takes over is old.
	sh(t, "ip -n %s neigh add 192.0.2.77 lladdr 02:00:00:00:00:99 dev eth0 nud stale", right)
	own, err := net.ParseMAC(sh(t, "ip netns exec %s cat /sys/class/net/eth0/address", left))
	if err != nil {
		t.Fatal(err)
	}
	var index int
	fmt.Sscan(sh(t, "ip netns exec %s cat /sys/class/net/eth0/ifindex", left), &index)

	var mu sync.Mutex
	silent := map[netip.Addr]bool{}
	a := New(Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Links: func() []Link {
			return []Link{{Index: index, Name: "eth0", MAC: own, Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
		},
		Silent: func(s map[netip.Addr]bool) { mu.Lock(); silent = s; mu.Unlock() }})
	other := netip.MustParseAddr("192.0.2.2")
	a.Update(map[netip.Addr]bool{netip.MustParseAddr("192.0.2.77"): true}, map[netip.Addr]bool{other: true})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and the namespace with it
		fd, err := unix.Open("/run/netns/"+left, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			err = a.Run(ctx)
		}
		done <- err
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	within := func(limit time.Duration, what string, ok func() bool) time.Duration {
		t.Helper()
		begin := time.Now()
		limit = max(limit, await.Patience) // how long it takes is told, and judged by nobody
		for !ok() {
			if time.Since(begin) > limit {
				t.Fatalf("%s: not within %s; neighbours of the left one: %s", what, limit, sh(t, "ip -n %s neigh", left))
			}
			time.Sleep(20 * time.Millisecond)
		}
		return time.Since(begin)
	}
	isSilent := func(want bool) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return silent[other] == want }
	}
	within(5*time.Second, "the announcement", func() bool {
		return strings.Contains(sh(t, "ip -n %s neigh show 192.0.2.77", right), own.String())
	})
	within(5*time.Second, "the watched one is known", func() bool {
		return strings.Contains(sh(t, "ip -n %s neigh show 192.0.2.2", left), "lladdr")
	})
	time.Sleep(5 * time.Second)
	if !isSilent(false)() {
		t.Error("one that answers counts as silent")
	}
	sh(t, "ip -n %s link set eth0 arp off", right)
	t.Logf("silent after %s", within(10*time.Second, "silence", isSilent(true)).Round(10*time.Millisecond))
	sh(t, "ip -n %s link set eth0 arp on", right)
	t.Logf("back after %s", within(10*time.Second, "coming back", isSilent(false)).Round(10*time.Millisecond))
}
