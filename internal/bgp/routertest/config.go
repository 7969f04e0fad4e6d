// SPDX-License-Identifier: Apache-2.0

package routertest

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/nettest"
)

// bfdInterval is how often BFD's packets come at most: as often as is said where the time is
// measured until a failure is seen, and elsewhere so that nobody is taken for dead who lacks a CPU
// for some seconds.
func bfdInterval(measured time.Duration) time.Duration {
	if nettest.Measuring() {
		return measured
	}
	return 2 * time.Second
}

func birdConfig(c Config) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "router id %s;\nprotocol device { scan time 1; }\nprotocol bfd { interface \"*\" { min rx interval %[2]d ms; min tx interval %[2]d ms; multiplier 5; }; }\n", c.ID, bfdInterval(100*time.Millisecond).Milliseconds())
	for _, f := range []string{"4", "6"} {
		fmt.Fprintf(b, "protocol kernel kernel%s { ipv%s { import none; export where source = RTS_BGP; }; }\nprotocol static networks%s { ipv%s;\n", f, f, f, f)
		for _, p := range c.Networks {
			if p.Addr().Is4() == (f == "4") {
				fmt.Fprintf(b, "  route %s unreachable;\n", p)
			}
		}
		fmt.Fprint(b, "}\n")
	}
	for i, n := range c.Neighbours {
		fmt.Fprintf(b, "protocol bgp n%d {\n  local %s as %d;\n  neighbor %s as %d;\n  graceful restart on;\n  connect retry time 1;\n  error wait time 1,2;\n  connect delay time 1;\n", i, n.Local, c.ASN, n.Remote, n.ASN)
		if n.Password != "" {
			fmt.Fprintf(b, "  password %q;\n", n.Password)
		}
		if n.BFD {
			fmt.Fprint(b, "  bfd on;\n")
		}
		if c.Hold > 0 {
			fmt.Fprintf(b, "  hold time %d;\n", c.Hold)
		}
		if c.Restart > 0 {
			fmt.Fprintf(b, "  graceful restart time %d;\n", c.Restart)
		}
		if c.LongLived > 0 {
			fmt.Fprintf(b, "  long lived graceful restart on;\n  long lived stale time %d;\n", c.LongLived)
		}
		if n.Client {
			fmt.Fprintf(b, "  rr client;\n")
		}
		if n.Multihop {
			fmt.Fprintf(b, "  multihop;\n")
		}
		f := "4"
		if n.Remote.Is6() {
			f = "6"
		}
		fmt.Fprintf(b, "  ipv%s { import all; export filter {", f)
		for _, one := range c.Communities {
			fmt.Fprintf(b, " bgp_community.add((%s));", strings.ReplaceAll(one, ":", ","))
		}
		if c.Prepended != 0 {
			fmt.Fprintf(b, " bgp_path.prepend(%d);", c.Prepended)
		}
		fmt.Fprint(b, " accept; }; };\n}\n")
	}
	return b.String()
}

func frrConfig(c Config) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "hostname r\nrouter bgp %d\n bgp router-id %s\n no bgp ebgp-requires-policy\n no bgp network import-check\n bgp graceful-restart\n timers bgp 3 90\n", c.ASN, c.ID)
	if c.Restart > 0 {
		fmt.Fprintf(b, " bgp graceful-restart restart-time %d\n", c.Restart)
	}
	if c.LongLived > 0 {
		fmt.Fprintf(b, " bgp long-lived-graceful-restart stale-time %d\n", c.LongLived)
	}
	for _, n := range c.Neighbours {
		fmt.Fprintf(b, " neighbor %s remote-as %d\n neighbor %s update-source %s\n neighbor %s timers connect 1\n neighbor %s advertisement-interval 0\n", n.Remote, n.ASN, n.Remote, n.Local, n.Remote, n.Remote)
		if n.Password != "" {
			fmt.Fprintf(b, " neighbor %s password %s\n", n.Remote, n.Password)
		}
		if n.BFD {
			fmt.Fprintf(b, " neighbor %s bfd 3 %[2]d %[2]d\n", n.Remote, bfdInterval(300*time.Millisecond).Milliseconds())
		}
		if n.Multihop {
			fmt.Fprintf(b, " neighbor %s ebgp-multihop\n", n.Remote)
		}
	}
	for _, f := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(b, " address-family %s unicast\n", f)
		for _, p := range c.Networks {
			if p.Addr().Is4() == (f == "ipv4") {
				fmt.Fprintf(b, "  network %s\n", p)
			}
		}
		for _, n := range c.Neighbours {
			if n.Remote.Is4() == (f == "ipv4") {
				fmt.Fprintf(b, "  neighbor %s activate\n", n.Remote)
				if n.Client {
					fmt.Fprintf(b, "  neighbor %s route-reflector-client\n", n.Remote)
				}
				if len(c.Communities) > 0 {
					fmt.Fprintf(b, "  neighbor %s route-map out out\n", n.Remote)
				}
			} else {
				fmt.Fprintf(b, "  no neighbor %s activate\n", n.Remote)
			}
		}
		fmt.Fprint(b, " exit-address-family\n")
	}
	if len(c.Communities) > 0 {
		fmt.Fprintf(b, "route-map out permit 1\n set community %s\n", strings.Join(c.Communities, " "))
	}
	return b.String()
}
