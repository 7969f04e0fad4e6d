// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// lateness is the control of what is measured by time: how late the machine wakes a sleeper, while
// nothing of Weir has a part in it. Where programs wait for a CPU, all that is measured takes
// longer by as much.
type lateness struct {
	mu sync.Mutex
	at []time.Time
	ms []float64
}

// control runs during all tests.
var control lateness

// run measures until the process ends.
func (l *lateness) run() {
	const tick = 5 * time.Millisecond
	for {
		began := time.Now()
		time.Sleep(tick)
		now := time.Now()
		l.mu.Lock()
		l.at, l.ms = append(l.at, now), append(l.ms, float64((now.Sub(began)-tick).Microseconds())/1000)
		l.mu.Unlock()
	}
}

// since is a percentile (0 to 1) of the lateness since then, ms.
func (l *lateness) since(began time.Time, p float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := len(l.at)
	for first > 0 && l.at[first-1].After(began) {
		first--
	}
	if first == len(l.at) {
		return 0
	}
	return percentile(append([]float64(nil), l.ms[first:]...), p)
}

// machineDrops counts the packets that a busy machine dropped: because a CPU's queue was full
// (net.core.netdev_max_backlog; of the whole machine, in /proc/net/softnet_stat, whose lines are
// hexadecimal numbers, the second of which is it), or the buffer of a socket that nobody read (of
// these places, the lab's nodes and its clients, RcvbufErrors of UDP in /proc/net/snmp).
func (l *lab) machineDrops(t *testing.T, who ...*place) (sum int) {
	t.Helper()
	b, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var all, dropped int
		if _, err := fmt.Sscanf(line, "%x %x", &all, &dropped); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sum += dropped
	}
	who = append(slices.Clone(who), l.client(1), l.client(2), l.client(3))
	for node, addr := range nodes {
		who = append(who, l.host(node, addr))
	}
	for _, at := range who {
		out, err := at.do("cat", "/proc/net/snmp")
		if err != nil {
			t.Fatal(err)
		}
		sum += snmp(t, out, "Udp:", "RcvbufErrors")
	}
	return sum
}

// snmp is a counter of /proc/net/snmp: names are in the first line of a kind, numbers in the second
// one.
func snmp(t *testing.T, text, kind, name string) int {
	t.Helper()
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != kind {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		if i := slices.Index(names, name); i > 0 && i < len(f) {
			if n, err := strconv.Atoi(f[i]); err == nil {
				return n
			}
		}
	}
	t.Fatalf("%s has no %s:\n%s", kind, name, text)
	return 0
}
