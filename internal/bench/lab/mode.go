package lab

import (
	"context"
	"fmt"
	"net/netip"
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

// probes is how many connections tell one mode from the other; the API server's own packets are few
// beside theirs.
const probes = 300

// AwaitMode waits until new connections of the client to a node port of the control-plane node, with a
// backend on another node, take the way of the mode. It returns the packets of one connection that the
// control-plane node sends out.
//
// The node hands each packet of the client on. In mode Tunnel the answers, at least a SYN-ACK, data and
// a FIN, go through it too.
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

// packetsBetween is between the packets that one connection takes in the two modes: about 7 of the client,
// and 5 of the server.
const packetsBetween = 9

// PacketsThrough makes connections and returns how many packets a connection the control-plane node sends out for it.
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
