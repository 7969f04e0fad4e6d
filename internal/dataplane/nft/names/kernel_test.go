// SPDX-License-Identifier: Apache-2.0

package names

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

var (
	podAddr = netip.MustParseAddr("10.244.1.2")
	podSix  = netip.MustParseAddr("fd00::2")
	server  = netip.MustParseAddr("10.96.0.10")
)

// stateOf is one with a pod, whose set has a pattern for each number.
func stateOf(ids ...nodestate.NameID) *nodestate.State {
	s := nodestate.New()
	s.Settings.IPv6 = true
	for _, a := range []netip.Addr{podAddr, podSix} {
		s.Addrs[a] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali1", IfIndex: atPod, Egress: nodestate.Isolation{Set: 3}}
	}
	for _, id := range ids {
		text := fmt.Sprintf("*.p%d.test", id)
		s.Names.Patterns[text], s.Names.Texts[id] = id, text
		s.Names.Sets[nodestate.NameKey{Set: 3, Name: id}] = 4
	}
	s.Names.Servers = []netip.Addr{server}
	return s
}

func nft(script string) (string, error) {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return string(out), nil
}

// told are the keys of Told in the kernel, of a family, as text.
func told(f table.Family) (map[string]time.Duration, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	all, err := read(conn, f)
	out := map[string]time.Duration{}
	for _, e := range all {
		out[fmt.Sprint(e.pod, " ", e.addr, " ", e.number)] = e.left
	}
	return out, err
}

// TestWritten holds what is in the kernel: elements of what is known, with their times, which are
// renewed whether they have just ended or not; none of patterns and pods that are gone; and that a
// plane that starts goes on with what one before it wrote.
func TestWritten(t *testing.T) {
	nettest.Run(t, func(string) error { return testWritten() })
}

func testWritten() error {
	sets := "add table %s weir; add set %s weir told { type %s . %s . classid; flags timeout; }\n"
	if _, err := nft(fmt.Sprintf(sets, "ip", "ip", "ipv4_addr", "ipv4_addr") + fmt.Sprintf(sets, "ip6", "ip6", "ipv6_addr", "ipv6_addr")); err != nil {
		return err
	}
	p, err := New(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer p.Close()
	learn := func(ttl uint32, name string, addr netip.Addr) error {
		a := answerOf(ttl, addr)
		a.Names = []string{name}
		return p.commit(p.learn(atPod, a, time.Now()))
	}
	want := func(what string, four, six []string) error {
		for f, want := range map[table.Family][]string{{}: four, {Six: true}: six} {
			got, err := told(f)
			if err != nil {
				return err
			}
			if have := slices.Sorted(maps.Keys(got)); !slices.Equal(have, want) {
				return fmt.Errorf("%s: %s has %q, want %q", what, f, have, want)
			}
		}
		return nil
	}
	six := netip.MustParseAddr("2001:db8::1")
	if err := errors.Join(p.Adopt(), p.Apply(stateOf(5, 6), false), learn(60, "a.p5.test", addrAt(1)), learn(3600, "a.p6.test", six), learn(60, "other.test", addrAt(2))); err != nil {
		return err
	}
	four := []string{"10.244.1.2 198.18.0.1 0", "10.244.1.2 198.18.0.1 5"}
	sixes := []string{"fd00::2 2001:db8::1 0", "fd00::2 2001:db8::1 6"}
	if err := want("learned", four, sixes); err != nil {
		return err
	}
	// One that ended without the plane's knowing is written again all the same.
	if _, err := nft("delete element ip weir told { 10.244.1.2 . 198.18.0.1 . 0:5 }\n"); err != nil {
		return err
	}
	if err := errors.Join(learn(600, "b.p5.test", addrAt(1)), want("renewed", four, sixes)); err != nil {
		return err
	}
	if got, err := told(table.Family{}); err != nil || got[four[1]] < 500*time.Second || got[four[0]] < 500*time.Second {
		return fmt.Errorf("renewed elements count for %v (%v)", got, err)
	}

	next, err := New(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer next.Close()
	if err := errors.Join(next.Adopt(), next.Apply(stateOf(5, 6), false), want("adopted", four, sixes)); err != nil {
		return err
	}
	if got := next.NamesOf(atPod, six); len(got) != 1 || got[0].Name != 6 || got[0].Left < time.Hour-time.Minute {
		return fmt.Errorf("adopted: %+v", got)
	}
	if _, err := nft("flush set ip weir told\n"); err != nil {
		return err
	}
	if err := errors.Join(next.Apply(stateOf(5, 6), true), want("written again", four, sixes), next.Apply(stateOf(5), false), want("a pattern went", four, nil)); err != nil {
		return err
	}
	another := stateOf(5)
	for a, v := range another.Addrs {
		v.IfIndex++ // another pod has the addresses
		another.Addrs[a] = v
	}
	return errors.Join(next.Apply(another, false), want("another pod", nil, nil))
}

// TestAdoptsNoStrangers holds that what is left of another pod with the address, or of a pattern
// with the number, does not count.
func TestAdoptsNoStrangers(t *testing.T) {
	nettest.Run(t, func(string) error {
		if _, err := nft("add table ip weir; add set ip weir told { type ipv4_addr . ipv4_addr . classid; flags timeout; }\n" +
			"add element ip weir told { 10.244.1.2 . 198.18.0.1 . 0:5 timeout 60s comment \"8 0000000000000005\", 10.244.1.2 . 198.18.0.2 . 0:5 timeout 60s comment \"7 0000000100000005\", " +
			"10.244.1.2 . 198.18.0.3 . 0:5 timeout 60s, 10.244.1.2 . 198.18.0.4 . 0:5 timeout 60s comment \"7 0000000000000005\" }\n"); err != nil {
			return err
		}
		p, err := New(slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer p.Close()
		if err := errors.Join(p.Adopt(), p.Apply(stateOf(5), false)); err != nil {
			return err
		}
		got, err := told(table.Family{})
		if _, is := got["10.244.1.2 198.18.0.4 5"]; !is || got["10.244.1.2 198.18.0.1 5"]+got["10.244.1.2 198.18.0.2 5"]+got["10.244.1.2 198.18.0.3 5"] > 0 {
			return fmt.Errorf("adopted: %v (%v)", got, err)
		}
		return nil
	})
}

// TestRules holds that the tables of rules are there while a pod has names, that sets follow without
// the rest being made anew, and that what somebody else changed is made again.
func TestRules(t *testing.T) {
	if os.Getuid() == 0 {
		if _, err := findQueueing(); err != nil {
			t.Skip(err)
		}
	}
	nettest.Run(t, func(string) error {
		p, err := New(slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer p.Close()
		there := func(f table.Family, want bool) error {
			if is, err := intact(f); err != nil || is != want {
				return fmt.Errorf("table of %s is there: %v (%v), want %v", f, is, err, want)
			}
			return nil
		}
		four := table.Family{}
		if err := errors.Join(p.Apply(stateOf(5), false), there(four, true), there(table.Family{Six: true}, true)); err != nil {
			return err
		}
		if _, err := nft("add element ip weir-names asked { 10.244.1.2 . 10.96.0.10 . 4000 . 77 }\n"); err != nil {
			return err
		}
		more := stateOf(5)
		more.Names.Servers = []netip.Addr{server.Next()}
		if err := p.Apply(more, false); err != nil {
			return err
		}
		out, err := exec.Command("nft", "list", "table", "ip", "weir-names").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "elements = { 10.96.0.11 }") || !strings.Contains(string(out), "10.96.0.10 . 4000 . 77") {
			return fmt.Errorf("the servers changed: %s (%v)", out, err)
		}
		if _, err := nft("flush chain ip weir-names answers\n"); err != nil {
			return err
		}
		if !p.Check() {
			return errors.New("a chain that was flushed is not missed")
		}
		if err := errors.Join(p.Apply(more, false), there(four, true), p.Apply(stateOf(), false), there(four, false)); err != nil {
			return err
		}
		return nil
	})
}
