// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/internal/nettest"
)

// many is how many routes a router advertises, and most what the process may take with them.
const (
	many = 10000
	most = 40 << 20 // bytes, once the routes are there
)

func TestManyRoutes(t *testing.T) {
	routertest.Need(t, "bird")
	if !nettest.Isolated(t) {
		return
	}
	ns := wire(t)
	c := routerConfig()
	for i := range many - len(c.Networks) {
		c.Networks = append(c.Networks, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(64 + i>>8), byte(i), 0}), 24))
	}
	routertest.Start(t, ns, "bird", c)
	n := newNode(t)
	n.agent.Set(nodeState())
	began := time.Now()
	n.start()
	n.eventually("all routes", func() error {
		if st := n.agent.Status(); st == nil || st.Routes.Installed != many {
			return errors.New("they are not")
		}
		return nil
	})
	nettest.Figure(t, "BGP: 10,000 routes are in the kernel, s", time.Since(began).Seconds())
	kib := func(field string) int {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
		nettest.Must(t, err)
		_, after, _ := strings.Cut(string(text), field)
		v, err := strconv.Atoi(strings.Fields(after)[0])
		nettest.Must(t, err)
		return v
	}
	n.eventually("memory is given back", func() error {
		if now := kib("VmRSS:"); now<<10 > most {
			return fmt.Errorf("%d KiB, want %d at most", now, most>>10)
		}
		return nil
	})
	time.Sleep(2 * rest) // whatever it still does is done
	nettest.Figure(t, "BGP: resident memory with 10,000 routes, MiB", float64(kib("VmRSS:"))/1024)
	// Pages of the program are the page cache's.
	nettest.Figure(t, "BGP: memory of the process's own with 10,000 routes, MiB", float64(kib("RssAnon:"))/1024)
	nettest.Figure(t, "BGP: most that was resident while 10,000 routes came, MiB", float64(kib("VmHWM:"))/1024)
}

// A session that ends while its peer still sends leaves none of the peer's routes: the library may
// be at work on a message of it in that moment.
func TestSessionEndsWhileRoutesArrive(t *testing.T) {
	routertest.Need(t, "bird")
	if !nettest.Isolated(t) {
		return
	}
	ns := wire(t)
	c := routerConfig()
	for i := range many {
		c.Networks = append(c.Networks, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(64 + i>>8), byte(i), 0}), 24))
	}
	routertest.Start(t, ns, "bird", c)
	n := newNode(t)
	with := nodeState()
	without := *with
	without.Peers = without.Peers[1:]
	peer := with.Peers[0].Addr
	n.start()
	learned := func() int {
		a, err := n.agent.Ask(t.Context(), feed.Ask{})
		if err != nil { // it has not started yet
			return 0
		}
		sum := 0
		for _, r := range a.Routes {
			if r.Peer == peer {
				sum++
			}
		}
		return sum
	}
	for range 6 {
		n.agent.Set(with)
		n.eventually("some routes", func() error {
			if learned() == 0 {
				return errors.New("there are none")
			}
			return nil
		})
		n.agent.Set(&without)
		n.eventually("no routes of a peer without a session", func() error {
			st := n.agent.Status()
			if left := learned(); left > 0 || st == nil || len(st.Peers) != len(without.Peers) {
				return fmt.Errorf("%d are left", left)
			}
			return nil
		})
	}
}
