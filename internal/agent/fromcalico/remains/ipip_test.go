// SPDX-License-Identifier: Apache-2.0

package remains

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/nettest"
)

// commands runs lines of a shell in the test's namespace.
func commands(lines ...string) (string, error) {
	out, err := exec.Command("sh", "-ec", strings.Join(lines, "\n")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return string(out), nil
}

// routes are those of IPv4 to prefixes of pods, a line each.
func routes() ([]string, error) {
	out, err := commands("ip -o route show root 10.244.0.0/16")
	var all []string
	for line := range strings.Lines(out) {
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	slices.Sort(all)
	return all, err
}

// calicoNode is the network of a node with Calico and IP in IP. Other devices stand in for those of
// IP in IP, which many kernels do not have.
var calicoNode = []string{
	"ip link add eth0 type veth peer name far0; ip link set eth0 up; ip link set far0 up; ip addr add 192.0.2.1/24 dev eth0",
	"ip link add tunl0 type veth peer name far1; ip link set tunl0 up; ip link set far1 up; ip addr add 10.244.1.1/32 dev tunl0",
	"ip link add weir-ipip type veth peer name far2; ip link set weir-ipip alias weir; ip link set far2 up",
	"ip route add 10.244.2.0/26 via 198.51.100.2 dev tunl0 proto bird onlink",
	"ip route add 10.244.3.0/26 via 192.0.2.3 dev eth0 proto bird",
	"ip route add blackhole 10.244.1.0/26 proto bird",
}

// TestTakeIPIP: BIRD's routes through Calico's device are Weir's from one moment to the next, those
// on the link are learned ones, and the device's address is the node's until no node has Calico.
func TestTakeIPIP(t *testing.T) {
	take := func(address string) error {
		return errors.Join(TakeIPIP(netip.MustParseAddr(address)), AdoptRoutes())
	}
	remove := func() error {
		_, err := Remove(true)
		return err
	}
	t.Run("of somebody else", func(t *testing.T) {
		nettest.Run(t, func(string) error {
			if _, err := commands(calicoNode...); err != nil {
				return err
			}
			if err := errors.Join(take("10.244.1.9"), remove(), EndIPIP()); err != nil {
				return err
			}
			out, err := commands("ip -o addr show dev tunl0 up")
			if err != nil || !strings.Contains(out, "10.244.1.1/32") {
				return fmt.Errorf("a device with another address is not left alone: %q, %w", out, err)
			}
			return nil
		})
	})
	nettest.Run(t, func(string) error {
		if _, err := commands(calicoNode...); err != nil {
			return err
		}
		for range 2 { // an agent may start again
			if err := take("10.244.1.1"); err != nil {
				return err
			}
		}
		got, err := routes()
		if want := []string{"10.244.2.0/26 via 198.51.100.2 dev tunl0 proto 87 onlink", "10.244.3.0/26 via 192.0.2.3 dev eth0 proto 88 metric 512 onlink", "blackhole 10.244.1.0/26 proto bird"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("taken over: %q, want %q; %v", got, want, err)
		}
		if out, err := commands("ip -o link show dev weir-ipip up"); err != nil || out == "" {
			t.Errorf("Weir's device does not take packets yet: %v", err)
		}
		if err := remove(); err != nil {
			return err
		}
		out, err := commands("ip route show proto bird")
		if err != nil || out != "" {
			t.Errorf("of BIRD there is left %q, %v", out, err)
		}
		own := func(dev string) string {
			out, err := commands("ip -o -4 addr show up dev " + dev)
			if err != nil {
				t.Error(err)
			}
			return out
		}
		if !strings.Contains(own("tunl0"), "10.244.1.1/32") || !strings.Contains(own("weir-ipip"), "10.244.1.1/32") {
			t.Errorf("tunl0 has %q, weir-ipip %q", own("tunl0"), own("weir-ipip"))
		}
		for range 2 {
			if err := EndIPIP(); err != nil {
				return err
			}
			if own("tunl0") != "" || own("weir-ipip") != "" {
				t.Errorf("in the end tunl0 has %q, weir-ipip %q", own("tunl0"), own("weir-ipip"))
			}
		}
		return nil
	})
}

// TestHandBack: where BIRD runs again, Weir's routes to other nodes are BIRD's from one moment to
// the next, through Calico's device where they were through Weir's; others stay.
func TestHandBack(t *testing.T) {
	weir := append(slices.Clone(calicoNode[:3]),
		"ip link set weir-ipip up; ip link add weir0 type veth peer name weir0p; ip link set weir0 alias weir; ip link set weir0 up; ip link set weir0p up",
		"ip route add 10.244.0.0/16 dev weir0 proto 87",
		"ip route add 10.244.2.0/26 encap ip id 0 dst 198.51.100.2 src 192.0.2.1 dev weir-ipip proto 87",
		"ip route add 10.244.2.77 encap ip id 0 dst 198.51.100.2 src 192.0.2.1 dev weir-ipip proto 87",
		"ip route add 10.244.3.0/26 via 192.0.2.3 dev eth0 proto 87 onlink",
		"ip route add 10.244.4.0/26 via 192.0.2.4 dev eth0 proto 87 metric 2048 onlink",
	)
	nettest.Run(t, func(string) error {
		if _, err := commands(weir...); err != nil {
			return err
		}
		before, err := routes()
		if err != nil {
			return err
		}
		if err := HandBack(); err != nil {
			return err
		}
		if got, err := routes(); err != nil || !slices.Equal(got, before) {
			t.Errorf("without BIRD: %q, was %q; %v", got, before, err)
		}
		if _, err := commands("ip route add blackhole 10.244.1.0/26 proto bird"); err != nil {
			return err
		}
		if err := HandBack(); err != nil {
			return err
		}
		got, err := routes()
		want := []string{"10.244.0.0/16 dev weir0 proto 87 scope link", "10.244.2.0/26 via 198.51.100.2 dev tunl0 proto bird onlink", "10.244.2.77 via 198.51.100.2 dev tunl0 proto bird onlink",
			"10.244.3.0/26 via 192.0.2.3 dev eth0 proto bird onlink", "10.244.4.0/26 via 192.0.2.4 dev eth0 proto 87 metric 2048 onlink", "blackhole 10.244.1.0/26 proto bird"}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q, want %q; %v", got, want, err)
		}
		return nil
	})
	// Where Calico has no such device in use, what went through Weir's is not its routes' matter.
	nettest.Run(t, func(string) error {
		if _, err := commands(append(weir, "ip route add blackhole 10.244.1.0/26 proto bird; ip link set tunl0 down")...); err != nil {
			return err
		}
		if err := HandBack(); err != nil {
			return err
		}
		ways, err := hostnet.Ways()
		if err != nil || len(ways) != 2 || !ways[0].IPIP || ways[0].Via.String() != "198.51.100.2" {
			t.Errorf("%+v, %v", ways, err)
		}
		return nil
	})
}
