// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hasMTU checks the MTU of a pod's interface.
func (p *place) hasMTU(want int) error {
	out, err := p.do("ip", "-o", "link", "show", "eth0")
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(out, " mtu ")
	if got, _, _ := strings.Cut(rest, " "); got != strconv.Itoa(want) {
		return fmt.Errorf("pod %s has MTU %s, want %d", p.pod, got, want)
	}
	return nil
}

// poolMode sets the encapsulation of the default pool; the test's end sets it back, and waits until
// no node has a tunnel.
func (l *lab) poolMode(t *testing.T, mode string) {
	t.Helper()
	set := func(m string) error {
		_, err := l.kubectl("", "patch", "ippools.projectcalico.org", "default", "--type=merge", "-p", `{"spec":{"vxlanMode":"`+m+`"}}`)
		return err
	}
	if err := set(mode); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set("Never"); err != nil {
			t.Error(err)
		}
		eventually(t, 0, "no tunnel", func() error {
			for node := range nodes {
				if out, err := l.exec(node, "ip", "-o", "link"); err != nil || strings.Contains(out, "vxlan.calico") {
					return fmt.Errorf("%s: %w %s", node, err, out)
				}
			}
			return nil
		})
	})
}

// encapsulated counts UDP datagrams that a node received at the tunnel's port: those of the device.
func (l *lab) encapsulated(t *testing.T, node string) float64 {
	t.Helper()
	out, err := l.exec(node, "cat", "/sys/class/net/vxlan.calico/statistics/rx_packets")
	if err != nil {
		return 0 // no device, no tunnel
	}
	var n float64
	fmt.Sscan(out, &n)
	return n
}

// TestEncapsulation changes the pool's encapsulation under open connections.
func TestEncapsulation(t *testing.T) {
	all.inParallel(t)
	b := sharedBase(t)
	tcp := b.cli1.begin(t, "stream", at(b.srv2.addr, echoPort))
	udp := b.cli2.begin(t, "datagrams", at(b.srv1.addr, udpPort))
	outside := b.client(1).begin(t, "stream", at(cpAddr, nodePort2+nodeEcho))
	for i, step := range []struct {
		mode   string
		tunnel bool
		mtu    int
	}{{"Always", true, 1450}, {"CrossSubnet", false, 1450}, {"Always", true, 1450}, {"Never", false, 1500}} {
		t.Run(fmt.Sprintf("%d %s", i+1, step.mode), func(t *testing.T) {
			if _, err := b.kubectl("", "patch", "ippools.projectcalico.org", "default", "--type=merge", "-p", `{"spec":{"vxlanMode":"`+step.mode+`"}}`); err != nil {
				t.Fatal(err)
			}
			eventually(t, 10*time.Second, "the path of new packets", func() error {
				before := b.encapsulated(t, "worker2")
				// One that is lost in the change is not waited for long: all are sent again.
				r := b.cli1.dial(t, at(b.srv2.addr, udpPort), 50, "--udp", "--every", "2ms", "--timeout", "3s")
				if n := b.encapsulated(t, "worker2") - before; r.Failed > 0 || (n >= 50) != step.tunnel {
					return fmt.Errorf("%v encapsulated packets arrived: %v", n, r)
				}
				return nil
			})
			// Pods that are there already send much, too.
			b.cli1.burst(t, at(b.srv2.addr, echoPort), 2000)
			b.cli2.burst(t, at(b.svc1, echoPort), 2000)
			b.client(1).burst(t, at(cpAddr, nodePort2+nodeEcho), 500)
			name := fmt.Sprintf("new%d", i)
			p := b.start(t, b.server(name+"a", "worker1", nil), b.server(name+"b", "worker2", nil))
			for _, pod := range p {
				eventually(t, 5*time.Second, "the MTU", func() error { return pod.hasMTU(step.mtu) })
			}
			p[0].reaches(t, at(p[1].addr, whoPort), name+"b", p[0].addr)
			p[0].burst(t, at(p[1].addr, echoPort), 2000)
			p[0].fits(t, p[1].addr, step.mtu)
		})
	}
	unbroken(t, tcp)
	unbroken(t, outside)
	// The nodes do not change at the same moment; what one sends into a tunnel that the other has
	// not made yet is lost.
	r := result[dialResult](t, udp)
	note(t, "datagrams lost in 4 changes, 10 ms apart", float64(r.Failed))
	if *strictTiming && r.Failed > 100 || r.Failed > r.Attempts/2 {
		t.Errorf("more than a second's datagrams were lost: %v", r)
	}
}

// fits checks that packets of the MTU get through unfragmented, and larger ones do not leave.
func (p *place) fits(t *testing.T, to string, mtu int) {
	t.Helper()
	const headers = 28 // IPv4 and ICMP
	if out, err := p.do("ping", "-M", "do", "-c2", "-i0.2", "-W30", "-s", strconv.Itoa(mtu-headers), to); err != nil {
		t.Errorf("%d bytes do not get through: %s", mtu, out)
	}
	if out, err := p.do("ping", "-M", "do", "-c1", "-W1", "-s", strconv.Itoa(mtu-headers+1), to); err == nil {
		t.Errorf("%d bytes get through: %s", mtu+1, out)
	}
}
