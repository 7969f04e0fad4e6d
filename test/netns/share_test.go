// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/hostile"
)

// hoard makes UDP flows to r.Addr from r.Size ports, r.From being the first: of two questions each,
// so that they are established. It ends with the first flow that does not come about; Again of the
// answer is how many did.
func hoard(r request) answer {
	from, err := netip.ParseAddrPort(r.From)
	if err != nil {
		return fromErr(err)
	}
	to, err := net.ResolveUDPAddr("udp", r.Addr)
	if err != nil {
		return fromErr(err)
	}
	for i := range r.Size {
		if !establish(net.UDPAddrFromAddrPort(netip.AddrPortFrom(from.Addr(), from.Port()+uint16(i))), to) {
			return answer{Again: i}
		}
	}
	return answer{Again: r.Size}
}

// establish asks twice, each time again where nobody answers soon.
func establish(from, to *net.UDPAddr) bool {
	c, err := net.DialUDP("udp", from, to)
	if err != nil {
		return false
	}
	defer c.Close()
	buf := make([]byte, 256)
	for answers, tries := 0, 0; answers < 2; {
		if tries++; tries > 5 {
			return false
		}
		c.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := c.Write([]byte("?")); err != nil {
			return false
		}
		if _, err := c.Read(buf); err == nil {
			answers++
		}
	}
	return true
}

// TestHostileShare: a pod that fills the connection table is held to its share of it, and nobody
// else is.
func TestHostileShare(t *testing.T) { inBoth(t, testHostileShare) }

func testHostileShare(t *testing.T, fam family) {
	record(t, "a pod fills the connection table with flows of its own", hostile.Pod, fam)
	f := newFixture(t, fam)
	f.cluster.Settings.Timeouts.UDP = time.Hour
	f.n1.driver.kill()
	f.n1.driver.flows = 8192 // of which 7,680 may be used by anybody, 2 a flow
	f.n1.driver.start()
	f.apply()
	for i, nw := range networks {
		if a := f.a.call(request{Op: "open", Net: nw, Addr: f.c.at("8080"), ID: i}); a.Err != "" {
			t.Fatalf("%s: %s", nw, a.Err)
		}
		f.a.call(request{Op: "talk", ID: i})
	}
	made := 0
	for port := 10000; f.n1.driver.last.Shares == 0; port += 2000 {
		if port > 60000 {
			t.Fatalf("the pod has made %d flows and was never held", made)
		}
		a := f.a.call(request{Op: "hoard", From: netip.AddrPortFrom(f.a.local.Addrs[0], uint16(port)).String(), Addr: f.c.at("8080"), Size: 2000})
		if a.Err != "" {
			t.Fatal(a.Err)
		}
		made += a.Again
		f.apply() // reports what was dropped
	}
	t.Logf("held after %d flows", made)
	if made < 8192/8/2 {
		t.Errorf("held after %d flows, of which it may have 512 whatever the others have", made)
	}
	if held := f.n1.driver.last.Held; !slices.Equal(held, []string{"10.244.1.2"}) {
		t.Errorf("held are %v", held)
	}
	for i, nw := range networks {
		f.a.refused(nw, f.c.at("8080"))
		f.a.refused(nw, f.b.at("8080"))
		if a := f.a.call(request{Op: "talk", ID: i}); a.Err != "" {
			t.Errorf("what the pod has open ends: %s: %s", nw, a.Err)
		}
		for range 5 {
			want(t, nw+" of another pod", f.b.reaches("c", nw, f.c.at("8080")), "10.244.1.3")
			want(t, nw+" of the node", f.n1.reaches("c", nw, f.c.at("8080")), "172.30.0.8")
			want(t, nw+" to the pod", f.c.reaches("a", nw, f.a.at("8080")), "10.244.2.2")
		}
	}
}
