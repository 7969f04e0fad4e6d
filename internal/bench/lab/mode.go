// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Mode is the value of bpfExternalServiceMode.
type Mode string

// The modes.
const (
	Tunnel Mode = "Tunnel"
	DSR    Mode = "DSR"
)

// SetMode changes the mode of a lab that Weir carries, live.
func (l *Lab) SetMode(ctx context.Context, m Mode) error {
	_, err := l.Weir(ctx, "patch", "felixconfiguration", "default", "--patch", ModePatch(m))
	return err
}

// ModePatch is what SetMode patches into the FelixConfiguration "default".
func ModePatch(m Mode) string {
	return fmt.Sprintf(`{"spec":{"bpfExternalServiceMode":%q}}`, string(m))
}

// probes is how many connections distinguish one mode from the other; the API server's own packets
// are few alongside theirs.
const probes = 300

// AwaitMode waits until new connections of the client to a node port of the control-plane node,
// with a backend on another node, take the path of the mode. It returns the packets of one
// connection that the control-plane node sends out.
//
// The node hands each packet of the client on. In mode Tunnel the answers, at least a SYN-ACK, data
// and a FIN, go through it too.
func AwaitMode(ctx context.Context, client Place, to netip.AddrPort, m Mode) (float64, error) {
	var out float64
	for start := time.Now(); time.Since(start) < 15*time.Second; {
		in, err := PacketsThrough(ctx, client, to, probes)
		if err != nil {
			return 0, err
		}
		out = in
		if (out >= packetsBetween) == (m == Tunnel) {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
	return out, fmt.Errorf("15 s after switching to %s the control-plane node still sends %.1f packets a connection", m, out)
}

// packetsBetween is between the packets that one connection takes in the two modes: about 7 of the
// client, and 5 of the server.
const packetsBetween = 9

// PacketsThrough makes connections and returns how many packets a connection the control-plane node
// sends out for it.
func PacketsThrough(ctx context.Context, client Place, to netip.AddrPort, count int) (float64, error) {
	before, err := client.Lab.sent(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := client.Measure(ctx, "requests", to.String(), "--count", strconv.Itoa(count), "--ports", "50000-59999", "--reuse-time-wait"); err != nil {
		return 0, err
	}
	after, err := client.Lab.sent(ctx)
	if err != nil {
		return 0, err
	}
	return float64(after-before) / float64(count), nil
}

// sent are the packets that the control-plane node has sent out of its uplink.
func (l *Lab) sent(ctx context.Context) (int64, error) {
	text, err := l.Exec(ctx, "cp", "cat", "/sys/class/net/eth0/statistics/tx_packets")
	if err != nil {
		return 0, fmt.Errorf("counting the control-plane node's packets: %w", err)
	}
	return strconv.ParseInt(strings.TrimSpace(text), 10, 64)
}

// SetConnectTime switches balancing at connect time on or off in a lab that Weir's programs carry,
// live.
func (l *Lab) SetConnectTime(ctx context.Context, on bool) error {
	value := "Disabled"
	if on {
		value = "TCP" // the default
	}
	_, err := l.Weir(ctx, "patch", "felixconfiguration", "default", "--patch", fmt.Sprintf(`{"spec":{"bpfConnectTimeLoadBalancing":%q}}`, value))
	return err
}

// AwaitConnectTime waits until new connections of a pod to a Service are balanced at connect time,
// or not. The pod's own sockets show it: balanced at connect time they are connected to the
// backend, otherwise to the cluster IP.
func AwaitConnectTime(ctx context.Context, client Place, service netip.AddrPort, on bool) error {
	var balanced bool
	for start, port := time.Now(), 40000; time.Since(start) < 15*time.Second; port++ {
		_, err := client.Bench(ctx, "requests", service.String(), "--count", "1", "--ports", fmt.Sprintf("%d-%d", port, port), "--reuse-time-wait")
		if err != nil {
			return err
		}
		sockets, err := client.Lab.Exec(ctx, client.Machine, "nsenter", "--net=/proc/"+client.pid+"/ns/net", "--", "cat", "/proc/net/tcp", "/proc/net/tcp6")
		if err != nil {
			return fmt.Errorf("reading the sockets of %v: %w", client, err)
		}
		peer, found := peerOf(sockets, uint16(port))
		if !found {
			return fmt.Errorf("%v has no socket at port %d right after it connected from there", client, port)
		}
		if balanced = peer != service.Addr(); balanced == on {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
	return fmt.Errorf("15 s after balancing at connect time was switched, connections are balanced there: %v", balanced)
}

// peerOf finds the IPv4 peer of the socket at a local port in the text of /proc/net/tcp and tcp6
// (proc_pid_net(5): addresses are words in the machine's byte order, which is little-endian on all
// that Weir runs on, ports hexadecimal numbers).
func peerOf(sockets string, port uint16) (netip.Addr, bool) {
	for line := range strings.Lines(sockets) {
		f := strings.Fields(line)
		if len(f) < 3 || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			continue
		}
		text, _, _ := strings.Cut(f[2], ":")
		if len(text) < 8 {
			continue
		}
		word, err := strconv.ParseUint(text[len(text)-8:], 16, 32) // of a mapped address the last word
		if err != nil {
			continue
		}
		return netip.AddrFrom4([4]byte{byte(word), byte(word >> 8), byte(word >> 16), byte(word >> 24)}), true
	}
	return netip.Addr{}, false
}

// UseNFTables changes a lab that Weir carries over to the nftables data plane, live, and waits
// until every node says that it has it.
func (l *Lab) UseNFTables(ctx context.Context) error {
	if _, err := l.Weir(ctx, "patch", "felixconfiguration", "default", "--patch", `{"spec":{"bpfEnabled":false}}`); err != nil {
		return err
	}
	var planes string
	for start := time.Now(); time.Since(start) < time.Minute; {
		var err error
		if planes, err = l.Kubectl(ctx, "", "get", "nodestatus", "-o", "jsonpath={.items[*].status.dataplane}"); err != nil {
			return err
		}
		has := strings.Fields(planes)
		if len(has) > 0 && !slices.ContainsFunc(has, func(p string) bool { return p != "nftables" }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(500 * time.Millisecond):
		}
	}
	return fmt.Errorf("a minute after bpfEnabled was set to false the nodes have %q", planes)
}
