// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What a change of the data plane does to connections is distinguished from what a busy machine
// does to them: each change is held against a window before it in which the same node only starts
// its driver again, with the data plane that it has. That takes as long, and as much of the CPUs.

// window is what happened to streams in a span of time.
type window struct {
	spans, exchanges int
	slow, late       int // as in streamReport
	longest          time.Duration
	longestOf        string
	again            int // segments that TCP sent again, of the workers' whole network namespaces
	twice            int // of these, those that came twice (RFC 2883): they were late, not lost
}

func (w window) String() string {
	return fmt.Sprintf("longest exchange %v (%s), %d of %d over %v, %d others seen so by a process that read late; %d segments sent again, %d of them in vain",
		w.longest.Round(time.Millisecond), w.longestOf, w.slow, w.exchanges, slow, w.late, w.again, w.twice)
}

func (w *window) add(o window) {
	w.spans += o.spans
	w.exchanges, w.slow, w.late, w.again, w.twice = w.exchanges+o.exchanges, w.slow+o.slow, w.late+o.late, w.again+o.again, w.twice+o.twice
	if o.longest > w.longest {
		w.longest, w.longestOf = o.longest, o.longestOf
	}
}

// watched are streams whose windows are looked through.
type watched struct {
	at      []*worker
	counted map[*worker]map[string]int
}

// watch begins a window.
func watch(t *testing.T, all []*running, at ...*worker) *watched {
	t.Helper()
	w := &watched{at: at, counted: map[*worker]map[string]int{}}
	w.end(t, all)
	return w
}

// end ends a window, and begins the next.
func (w *watched) end(t *testing.T, all []*running) window {
	t.Helper()
	out := window{spans: 1}
	for _, s := range all {
		a := s.call(request{Op: "stream window", ID: s.id})
		if a.Err != "" || a.Stream == nil {
			t.Fatalf("%s: %s", s.what, a.Err)
		}
		out.add(window{exchanges: a.Stream.Exchanges, slow: a.Stream.Slow, late: a.Stream.Late, longest: a.Stream.Longest, longestOf: s.what + " from " + a.Stream.LongestAt})
	}
	for _, at := range w.at {
		now := at.call(request{Op: "counters"})
		if now.Err != "" {
			t.Fatalf("%s: %s", at.name, now.Err)
		}
		was := w.counted[at]
		out.again += now.Counters["Tcp RetransSegs"] - was["Tcp RetransSegs"]
		out.twice += now.Counters["TcpExt TCPDSACKRecv"] - was["TcpExt TCPDSACKRecv"]
		w.counted[at] = now.Counters
	}
	return out
}

// readCounters are those of the network namespace: /proc/net/snmp and netstat, which have two lines
// for each kind, of names and of numbers.
func readCounters() answer {
	out := map[string]int{}
	for _, name := range []string{"snmp", "netstat"} {
		b, err := os.ReadFile("/proc/self/net/" + name)
		if err != nil {
			return fromErr(err)
		}
		lines := strings.Split(string(b), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, numbers := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for j := 1; j < min(len(names), len(numbers)); j++ {
				n, err := strconv.Atoi(numbers[j])
				if err != nil {
					return fromErr(err)
				}
				out[strings.TrimSuffix(names[0], ":")+" "+names[j]] = n
			}
		}
	}
	return answer{Counters: out}
}
