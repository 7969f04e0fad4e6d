// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command sctp replaces agnhost where the kernel has no SCTP sockets. It sets associations up
// by itself, on raw sockets (RFC 9260, section 5.1), and hands everything else on to the agnhost
// that it is put before:
//
//	agnhost connect --protocol=sctp --timeout=3s ADDR:PORT   as agnhost's: nothing on success, else TIMEOUT or REFUSED and exit code 1
//	agnhost porter                                           with SERVE_SCTP_PORT_N in its environment: accepts associations at port N
//
// It needs CAP_NET_RAW, and carries IPv4 only.
package main

import (
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// behind is where the real agnhost is.
const behind = "/tools/agnhost.real"

func main() {
	if len(os.Args) > 1 && os.Args[1] == "porter" {
		if ports := served(os.Environ()); len(ports) > 0 {
			fail(serve(ports))
		}
	}
	if target, timeout, ok := association(os.Args[1:]); ok {
		if err := connect(target, timeout); err != nil {
			fail(err)
		}
		return
	}
	fail(syscall.Exec(behind, append([]string{"/agnhost"}, os.Args[1:]...), os.Environ()))
}

func fail(err error) {
	if err == nil {
		return
	}
	text := "OTHER: " + err.Error()
	switch {
	case errors.Is(err, errTimeout):
		text = "TIMEOUT"
	case errors.Is(err, errRefused):
		text = "REFUSED"
	}
	os.Stderr.WriteString(text + "\n")
	os.Exit(1)
}

// served reads the ports of porter's environment.
func served(environ []string) map[uint16]bool {
	out := map[uint16]bool{}
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if text, ok := strings.CutPrefix(name, "SERVE_SCTP_PORT_"); ok {
			if n, err := strconv.ParseUint(text, 10, 16); err == nil {
				out[uint16(n)] = true
			}
		}
	}
	return out
}

// association reads agnhost's command line: ok is false for what is not about SCTP.
func association(args []string) (target netip.AddrPort, timeout time.Duration, ok bool) {
	if len(args) == 0 || args[0] != "connect" {
		return target, 0, false
	}
	sctp := false
	for _, a := range args[1:] {
		if text, is := strings.CutPrefix(a, "--timeout="); is {
			timeout, _ = time.ParseDuration(text)
		} else if a == "--protocol=sctp" {
			sctp = true
		} else if !strings.HasPrefix(a, "--") {
			target, _ = netip.ParseAddrPort(a)
		}
	}
	return target, timeout, sctp && target.IsValid() && timeout > 0
}
