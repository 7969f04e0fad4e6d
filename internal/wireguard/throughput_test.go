// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/weir-net/weir/internal/nettest"
)

const (
	rounds   = 5
	roundFor = time.Second
	bulkPort = 13
)

const runAlone = "WEIR_TEST_WIREGUARD_ALONE"

// wireGuardGo is wireguard-go as it is.
func wireGuardGo(name string) error {
	t, err := tun.CreateTUN(name, 1420)
	if err != nil {
		return err
	}
	d := device.NewDevice(t, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
	file, err := ipc.UAPIOpen(name)
	if err != nil {
		return err
	}
	l, err := ipc.UAPIListen(name, file)
	for err == nil {
		var c net.Conn
		if c, err = l.Accept(); err == nil {
			go d.IpcHandle(c)
		}
	}
	return err
}

// setMTU sets the MTU of a device.
func (s *side) setMTU(name string, mtu int) {
	s.t.Helper()
	s.Do(s.t, "the MTU of "+name, func() error {
		l, err := netlink.LinkByName(name)
		return errors.Join(err, netlink.LinkSetMTU(l, mtu))
	})
}

// bulk sends to an address of another node for a while, by one TCP connection, and returns the
// bytes a second that arrive.
func (s *side) bulk(to *side, at netip.Addr) float64 {
	s.t.Helper()
	var l net.Listener
	to.Do(s.t, "a listener", func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(at, bulkPort).String())
		return err
	})
	defer l.Close()
	arrived := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			arrived <- 0
			return
		}
		defer c.Close()
		n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 1<<17)) // what arrived counts
		arrived <- n
	}()
	var c net.Conn
	s.Do(s.t, "a connection", func() (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(at, bulkPort).String(), within)
		return err
	})
	began := time.Now()
	_ = c.SetDeadline(began.Add(within))
	b := make([]byte, 1<<17)
	for time.Since(began) < roundFor {
		if _, err := c.Write(b); err != nil {
			s.t.Fatal(err)
		}
	}
	c.Close()
	n := <-arrived
	if n == 0 {
		s.t.Fatal("nothing arrived")
	}
	return float64(n) / time.Since(began).Seconds()
}

// alone gives two nodes devices of wireguard-go that nothing of Weir's configures, with an address
// each, and returns that of the second.
func alone(t *testing.T, a, b *side, mtu int) netip.Addr {
	t.Helper()
	inside := map[*side]netip.Addr{a: netip.MustParseAddr("10.2.0.1"), b: netip.MustParseAddr("10.2.0.2")}
	keys := map[*side]wgtypes.Key{}
	for s := range inside {
		s.process(runAlone + "=" + s.device)
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		keys[s] = key
	}
	for s, other := range map[*side]*side{a: b, b: a} {
		key, port := keys[s], 51820
		cfg := wgtypes.Config{PrivateKey: &key, ListenPort: &port, Peers: []wgtypes.PeerConfig{{PublicKey: keys[other].PublicKey(),
			Endpoint: &net.UDPAddr{IP: other.addr.AsSlice(), Port: port}, AllowedIPs: []net.IPNet{single(inside[other])}}}}
		until(t, "a device of wireguard-go", func() bool {
			var err error
			s.Do(t, "configuring wireguard-go", func() error {
				c, dialErr := wgctrl.New()
				if dialErr != nil {
					return dialErr
				}
				defer c.Close()
				err = c.ConfigureDevice(s.device, cfg)
				return nil
			})
			return err == nil
		})
		s.Do(t, "an address", func() error {
			l, err := netlink.LinkByName(s.device)
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetMTU(l, mtu), netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: inside[s].AsSlice(), Mask: net.CIDRMask(24, 32)}}), netlink.LinkSetUp(l))
		})
	}
	return inside[b]
}

// TestThroughput compares one TCP connection through Weir's encryption with the same without it,
// and with wireguard-go alone, in turns.
func TestThroughput(t *testing.T) {
	const mtu = 1500 - 60
	a, b := newPair(t, false)
	if a.kernel {
		t.Skip("the kernel has WireGuard: there is nothing to compare with wireguard-go")
	}
	a.setMTU("vx", mtu-50)
	b.setMTU("vx", mtu-50)
	a.start()
	b.start()
	a.mtu, b.mtu = mtu, mtu
	a.ready()
	b.ready()
	a.ready(b)
	b.ready(a)
	a.reaches(b, "with encryption")
	b.reaches(a, "with encryption")
	plainA, plainB := newPair(t, false)
	plainA.setMTU("vx", 1450)
	plainB.setMTU("vx", 1450)
	aloneA, aloneB := newPair(t, false)
	aloneA.device, aloneB.device = aloneA.device+"o", aloneB.device+"o"
	at := alone(t, aloneA, aloneB, mtu)
	settle(a, b)
	a.clear.Store(0)
	b.clear.Store(0)
	var plain, ours, theirs, ratio, toPlain []float64
	for range rounds {
		o, w, p := a.bulk(b, b.inner), aloneA.bulk(aloneB, at), plainA.bulk(plainB, plainB.inner)
		ours, theirs, plain = append(ours, o), append(theirs, w), append(plain, p)
		ratio, toPlain = append(ratio, o/w), append(toPlain, o/p)
	}
	silent(t, "while much is sent", a, b)
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	nettest.Figure(t, "TCP through WireGuard (wireguard-go), Mbit/s", median(ours)*8/1e6)
	nettest.Figure(t, "TCP through wireguard-go alone, Mbit/s", median(theirs)*8/1e6)
	nettest.Figure(t, "TCP through VXLAN in clear, Mbit/s", median(plain)*8/1e6)
	nettest.Figure(t, "TCP through WireGuard, relative to wireguard-go alone", median(ratio))
	nettest.Figure(t, "TCP through WireGuard, relative to VXLAN in clear", median(toPlain))
}
