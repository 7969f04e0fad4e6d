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

	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/internal/nettest"
)

// many is how many routes a router advertises, and most what the process may take with them.
const (
	many = 10000
	most = 48 << 20 // bytes
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
	took := time.Since(began)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	nettest.Must(t, err)
	// What is its own: pages of the program are the page cache's.
	_, after, _ := strings.Cut(string(text), "RssAnon:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	nettest.Must(t, err)
	t.Logf("%d routes are in the kernel after %s; the process has %.1f MiB", many, took.Round(time.Millisecond), float64(kib)/1024)
	if kib<<10 > most {
		t.Errorf("%d KiB, want %d at most", kib, most>>10)
	}
}
