// SPDX-License-Identifier: Apache-2.0

package wires

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// arrivalGroup is where what reaches the node's own stack is logged to.
const arrivalGroup = 64007

// arrivals is the last thing that happens to a packet for the node itself: it is shown to us, and
// ends there, so that the kernel does not answer. Of what comes by the loopback device only resets
// are: rules answer the node's own processes by it. It is registered before connection tracking's
// last hook of the same priority, which therefore comes first: the kernel puts a new hook before
// those of equal priority. What the tunnel carries goes on into it, where there is one.
const arrivals = `
table inet wires {
	set tunnel {
		type inet_service
	}
	chain arrivals {
		type filter hook input priority 2147483647
		iifname lo tcp flags & rst == rst log group %[2]d drop
		iifname lo accept
		iifname %[1]s udp dport @tunnel accept
		log group %[2]d drop
	}
}
`

// stopArrivals makes that rule. Call it inside, before anything else uses netfilter.
func stopArrivals() error {
	return nft(fmt.Sprintf(arrivals, uplinkName, arrivalGroup))
}

// passTunnel lets what comes for a port of UDP go on into the tunnel's device. Call it inside.
func passTunnel(port uint16) error {
	return nft(fmt.Sprintf("add element inet wires tunnel { %d }\n", port))
}

func nft(text string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// speak sends an IP packet as a process of the node does: by its stack and its routes. Call it
// inside.
func speak(ip []byte, dst netip.Addr) error {
	var to unix.Sockaddr
	family := unix.AF_INET
	if dst.Is6() {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: dst.As16()}
	} else {
		to = &unix.SockaddrInet4{Addr: dst.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("open a raw socket: %w", err)
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, ip, 0, to)
}
