// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// TestHostileRoutingHeaders: a pod sends to nobody by a routing header that names him behind the
// destination, not even where the kernels of its node and of others would follow one
// (seg6_enabled).
func TestHostileRoutingHeaders(t *testing.T) {
	t.Parallel()
	t.Run("IPv6", testHostileRoutingHeaders)
	t.Run("nft-IPv6", testHostileRoutingHeaders)
}

func testHostileRoutingHeaders(t *testing.T) {
	record(t, "a pod names another pod, or a host, behind a node in a routing header", hostile.RawPod, ipv6)
	r := newRawPod(t, ipv6)
	r.followRoutingHeaders()
	for _, via := range []string{"172.30.0.8", "172.30.0.9", "10.244.1.3", "10.244.2.2"} {
		for name, final := range map[string]string{"b": "10.244.1.3", "c": "10.244.2.2", "client": "172.30.0.55"} {
			for header, data := range map[string]string{
				"type 0":           "0001" + "00000000" + hexOf(final),                           // RFC 2460, section 4.4
				"segment routing":  "0401" + "01000000" + hexOf(final) + hexOf(via),              // RFC 8754
				"an end's segment": "0402" + "02000000" + hexOf(final) + hexOf(via) + hexOf(via), // twice
			} {
				if via == final {
					continue
				}
				what := fmt.Sprintf("hostile to %s: %s by %s.", name, header, via)
				for _, before := range []string{"", "ext=60:0x010400000000 "} {
					r.at["a"].send(r.frame("udp %s > %s ttl=64 %sext=43:0x%s data=%q", r.port("10.244.1.2", 6500), r.port(via, 7777), before, data, what))
				}
			}
		}
	}
	r.arrives()
	for _, name := range []string{"b", "c", "client"} {
		if r.at[name].saw("hostile to ") { // nor to who is to send it on
			t.Errorf("%s: a packet came by a routing header, or to be sent on by one", name)
		}
	}
}

// TestHostileListenersOfPods: what a pod says of groups that it listens to, or asks of others as a
// router does, is heard by nobody but its node.
func TestHostileListenersOfPods(t *testing.T) { inBoth(t, testHostileListenersOfPods) }

func testHostileListenersOfPods(t *testing.T, fam family) {
	record(t, "a pod reports groups that it listens to, or asks for listeners, beyond its interface", hostile.RawPod, fam)
	r := newRawPod(t, fam)
	a := r.at["a"]
	marker := "\xef\x09\x08\x07" // the group
	send := func(src, dst, rest string) {
		for _, mac := range [][6]byte{gatewayMAC, {0x01, 0x00, 0x5e, 0, 0, 1}, {0x33, 0x33, 0, 0, 0, 1}} {
			frame := r.frame("ip %s > %s %s", src, dst, rest)
			copy(frame, mac[:])
			a.send(frame)
		}
	}
	others := []string{"10.244.1.3", "10.244.2.2", "172.30.0.8", "172.30.0.9", "172.30.0.55"}
	if fam == ipv4 {
		group := hex.EncodeToString([]byte(marker))
		for _, message := range []string{"1164%s" + group, "1600%s" + group, "1700%s" + group, "2200%s0000000104000000" + group} { // RFC 2236, 3376
			plain := fmt.Sprintf(message, "0000")
			sum := checksum(t, plain)
			for _, dst := range append([]string{"224.0.0.1", "224.0.0.2", "224.0.0.22", "239.9.8.7"}, others...) {
				for _, src := range []string{"10.244.1.2", "0.0.0.0", "172.30.0.8", "10.244.1.3"} {
					for _, ttl := range []int{1, 2, 64} {
						send(src, dst, fmt.Sprintf("proto=2 ttl=%d data=0x%s", ttl, fmt.Sprintf(message, sum)))
					}
				}
			}
		}
	} else {
		group := "ff0e00000000000000000000" + hex.EncodeToString([]byte(marker))
		for _, message := range []string{"8200%s00010000" + group, "8300%s00000000" + group, "8400%s00000000" + group, "8f00%s0000000104000000" + group} { // RFC 2710, 3810
			for _, dst := range append([]string{"ff02::1", "ff02::2", "ff02::16", "ff0e::ef09:807", "fe80::1"}, others...) {
				if strings.Contains(dst, ".") {
					dst = sixOf(dst)
				}
				for _, src := range []string{"fe80::1234", "::", sixOf("10.244.1.2"), sixOf("172.30.0.8"), sixOf("10.244.1.3")} {
					for _, ttl := range []int{1, 2, 64} {
						data := fmt.Sprintf(message, fmt.Sprintf("%04x", sumOf(t, src, dst, fmt.Sprintf(message, "0000"))))
						send(src, dst, fmt.Sprintf("proto=58 ttl=%d data=0x%s", ttl, data))
						send(src, dst, fmt.Sprintf("proto=58 ttl=%d ext=0:0x050200000100 data=0x%s", ttl, data))
					}
				}
			}
		}
	}
	r.held(marker)
}

// checksum of a message of IGMP, as text.
func checksum(t *testing.T, message string) string {
	t.Helper()
	b, err := hex.DecodeString(message)
	if err != nil {
		t.Fatal(err)
	}
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return fmt.Sprintf("%04x", ^uint16(sum))
}

// TestHostileRoutingHeadersOfHosts: a host on the link reaches a pod through a node that follows
// routing headers, where somebody set seg6_enabled on its uplink, only as policy says, and with no
// address but its own: neither by a segment that names the pod, nor by a packet within one that the
// node unpacks (RFC 8754, section 4.3.1.2).
func TestHostileRoutingHeadersOfHosts(t *testing.T) {
	t.Parallel()
	t.Run("IPv6", testHostileRoutingHeadersOfHosts)
	t.Run("nft-IPv6", testHostileRoutingHeadersOfHosts)
}

func testHostileRoutingHeadersOfHosts(t *testing.T) {
	record(t, "a host on the link names a pod behind a node, or wraps what is for it, in a routing header", hostile.Link, ipv6)
	r := newRawPod(t, ipv6)
	p := allow("b", model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("c")}})
	p.Ingress = append(p.Ingress, model.Rule{Action: model.Allow, Peers: []model.Peer{{CIDR: ipv6.prefix("172.30.0.0/24")}}, Ports: []model.PortRange{{Protocol: model.ProtocolUDP, First: 7777, Last: 7777}}})
	r.cluster.Policies[p.ID()] = p
	r.apply()
	r.followRoutingHeaders()
	client, b := r.at["client"], r.at["b"]
	frame := func(text string, args ...any) []byte {
		f := r.frame(text, args...)
		copy(f, r.n1.mac[:])
		copy(f[6:], client.mac[:])
		return f
	}
	node, pod, marker := hexOf("172.30.0.8"), hexOf("10.244.1.3"), "hostile of"
	headers := []string{
		"0401" + "01000000" + pod + node,        // a segment after the node
		"0402" + "02000000" + pod + node + node, // the node twice
	}
	link, err := netip.ParsePrefix(run(t, "ip -n %s -6 -o addr show dev eth0 scope link | awk '{print $4}'", r.n1.netns))
	if err != nil {
		t.Fatal(err)
	}
	var frames [][]byte
	for i, src := range []string{"172.30.0.55", "10.244.2.2", "172.30.0.9"} {
		for j, header := range headers {
			for _, before := range []string{"", "ext=60:0x010400000000 ", "ext=44 ", "ext=43:0x040000000000" + node + " "} {
				frames = append(frames, frame("udp %s > %s ttl=64 %sext=43:0x%s data=%q", r.port(src, 6600+10*i+j), r.port("172.30.0.8", 7778), before, header,
					fmt.Sprintf("%s %s, header %d after %q.", marker, src, j, before)))
			}
		}
		frames = append(frames, frame("udp %s > %s ttl=64 ext=43:0x%s data=%q", r.port(src, 6630+i), netip.AddrPortFrom(link.Addr(), 7778), "0401"+"01000000"+pod+hex.EncodeToString(link.Addr().AsSlice()),
			marker+" "+src+", by a link-local address."))
		// In fragments, with the routing header in the first one behind the fragment header.
		whole := frame("udp %s > %s ttl=64 data=%q", r.port(src, 6640+i), r.port("172.30.0.8", 7778), fmt.Sprintf("%-16s%s %s, in fragments.", "first", marker, src))[54:]
		between := fmt.Sprintf("ip %s > %s ipid=%d ttl=64", sixOf(src), sixOf("172.30.0.8"), 77+i)
		frames = append(frames, frame("%s proto=17 frag=0+ ext=44 ext=43:0x%s data=0x%x", between, headers[0], whole[:24]),
			frame("%s proto=43 frag=%d data=0x%x", between, 40+24, whole[24:]))
		inner := frame("udp %s > %s ttl=64 data=%q", r.port(src, 6650+i), r.port("10.244.1.3", 7778), marker+" "+src+", unpacked.")
		for _, before := range []string{"", "ext=60:0x010400000000 "} {
			frames = append(frames, frame("ip %s > %s proto=41 ttl=64 %sext=43:0x040000000000%s data=0x%s", sixOf("172.30.0.55"), sixOf("172.30.0.8"), before, node, hex.EncodeToString(inner[14:])))
		}
	}
	for range 3 { // what was accepted once may pass as part of an open flow
		for _, f := range frames {
			client.send(f)
		}
		client.control(b, frame("udp %s > %s ttl=64 data=%q", r.port("172.30.0.55", 6001), r.port("10.244.1.3", 7777), "plain to b."), "plain to b.")
	}
	b.saw("")
	for _, f := range b.seen {
		if at := bytes.Index(f, []byte(marker)); at >= 0 {
			t.Errorf("b: a packet came by a routing header: %s", f[at:])
		}
	}
}

// followRoutingHeaders lets the kernels of all nodes follow segment routing headers.
func (r *rawPod) followRoutingHeaders() {
	for _, n := range r.nodes {
		run(r.t, "ip netns exec %s sh -ec 'for f in /proc/sys/net/ipv6/conf/*/seg6_enabled; do echo 1 >$f; done'", n.netns)
	}
}

// hexOf is an address of IPv6 in a routing header, as text.
func hexOf(addr string) string {
	return hex.EncodeToString(netip.MustParseAddr(sixOf(addr)).AsSlice())
}
