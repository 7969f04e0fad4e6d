// SPDX-License-Identifier: Apache-2.0

package heal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/nettest"
)

// What an agent that starts in poisoned tables may take from the start of its process: issue of
// security, 1.
const (
	connectedWithin = 10 * time.Second
	healedWithin    = 30 * time.Second
)

// What is tried, and by whom. All of it is there at once.
var attacks = map[string][]string{
	"an agent starts where frontend, route, flows and deny at once lead everybody away from the API server":      {hostile.Tenant, hostile.Operator},
	"tracked connections on every port of a node, which nobody answers, are translated away from the API server": {hostile.Tenant},
}

// TestHostileAgentHeals: whatever is in the tables, an agent that starts reaches the API server and
// heals the node by itself. IPv6 is tried where attacks are recorded.
func TestHostileAgentHeals(t *testing.T) {
	nettest.NeedRoot(t, "making network namespaces")
	if !apitest.Isolated(t) {
		return
	}
	w := newWorld(t)
	for _, f := range families {
		if f.six && os.Getenv(hostile.OutputVariable) == "" {
			continue
		}
		w.serve(f)
		for _, plane := range []string{hostile.NFTables, hostile.EBPF} {
			ok := t.Run(plane+"-"+f.name, func(t *testing.T) {
				for attack, actors := range attacks {
					for _, actor := range actors {
						hostile.Record(t, attack, actor, plane, f.name)
					}
				}
				heals(t, w, f, plane == hostile.NFTables)
			})
			if !ok {
				return // a failure takes minutes
			}
		}
	}
}

func heals(t *testing.T, w *world, f family, nft bool) {
	n := w.newNode(t, f, nft)
	n.start(false)
	clean := n.measure(nil)
	right := n.settled()
	if err := n.reaches(int(await.Patience.Seconds()), otherPorts); err != nil {
		t.Fatalf("the API server in tables that are right: %v", err)
	}
	for _, by := range []string{"address", "cluster IP"} {
		n.kill()
		await.That(t, "the end of the killed agent's connections", func() error {
			if c := n.connections(); c > 0 {
				return fmt.Errorf("%d are open", c)
			}
			return nil
		})
		n.poison()
		n.start(by == "cluster IP")
		took := n.measure(right)
		t.Logf("by %s: connected after %s, tables right after %s (without poison %s, %s)", by, took.connected, took.right, clean.connected, clean.right)
		took.check(t, clean)
		if err := n.reaches(int(await.Patience.Seconds()), otherPorts); err != nil {
			t.Errorf("other processes after the agent has healed the node: %v", err)
		}
		if nft { // flows of eBPF stay until they time out
			every := task{Op: "ask", To: []netip.AddrPort{n.api(false)}, Ports: n.ports, Seconds: int(await.Patience.Seconds())}
			if _, err := every.run(n.outside(), nil); err != nil {
				t.Errorf("flows to the thief are left: %v", err)
			}
		}
		n.beats()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", n.logs())
			return
		}
	}
}

// clock counts time as a process has it that wants to work every 10 ms: what the machine paused
// still, or was busy with others, does not count.
type clock struct{ ticks atomic.Int64 }

const tick = 10 * time.Millisecond

func startClock(ctx context.Context) *clock {
	c := &clock{}
	go func() {
		for ctx.Err() == nil {
			time.Sleep(tick)
			c.ticks.Add(1)
		}
	}()
	return c
}

func (c *clock) counted() time.Duration { return time.Duration(c.ticks.Load()) * tick }

// figure is how long something took, from the start of the agent's process, by the machine's time
// and by clock's.
type figure struct{ wall, counted time.Duration }

func (f figure) String() string { return f.wall.Round(10 * time.Millisecond).String() }

// figures are of a start of an agent.
type figures struct{ connected, right figure }

// measure waits until the agent that was started just now is connected, and until the tables are as
// wanted; nil = until its first status is published.
func (n *node) measure(want []string) (out figures) {
	n.t.Helper()
	began := time.Now()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c := startClock(ctx)
	check := func(what string, f func() error) figure {
		await.That(n.t, what, func() error {
			err := f()
			if err != nil && n.ended() {
				n.t.Fatalf("the agent has ended:\n%s", n.logs())
			}
			return err
		})
		return figure{time.Since(began), c.counted()}
	}
	defer func() {
		if n.t.Failed() {
			n.t.Logf("the agent's log:\n%s", n.logs())
		}
	}()
	out.connected = check("a connection of the agent to the API server", func() error {
		if n.connections() == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	out.right = check("tables as they should be", func() error {
		if want == nil {
			_, err := n.status()
			return err
		}
		got, err := n.tables()
		if err != nil {
			return err
		}
		return difference(want, got)
	})
	return out
}

// check compares with what is asked for. A machine that is slow, as a start without poison shows,
// has as much more time.
func (f figures) check(t *testing.T, clean figures) {
	t.Helper()
	slow := max(1, clean.right.wall.Seconds()/2)
	for _, c := range []struct {
		what  string
		took  figure
		limit time.Duration
	}{{"connected", f.connected, connectedWithin}, {"tables right", f.right, healedWithin}} {
		if limit := time.Duration(float64(c.limit) * slow); c.took.counted > limit {
			t.Errorf("%s after %s (%s counted), want %s (%s on a machine %.1f times as fast)", c.what, c.took, c.took.counted, limit, c.limit, slow)
		}
	}
}

// settled returns the tables once they have not changed for a second.
func (n *node) settled() (lines []string) {
	n.t.Helper()
	since := time.Now()
	await.That(n.t, "tables that stay as they are", func() error {
		got, err := n.tables()
		if err != nil {
			return err
		}
		if difference(lines, got) != nil {
			lines, since = got, time.Now()
		}
		if still := time.Since(since); still < time.Second {
			return fmt.Errorf("they changed %s ago", still)
		}
		return nil
	})
	return lines
}

// status is what the node's agent published last.
func (n *node) status() (*weirv1.NodeStatus, error) {
	return client.NodeStatuses(n.world.server.Clients.Dynamic).Get(context.Background(), n.name)
}

// beats waits for a status of the running agent that says that the data plane is in place.
func (n *node) beats() {
	n.t.Helper()
	await.That(n.t, "a status of the agent", func() error {
		st, err := n.status()
		if err != nil {
			return err
		}
		for _, c := range st.Status.Conditions {
			if c.Status != metav1.ConditionTrue {
				return fmt.Errorf("%s: %s", c.Type, strings.TrimSpace(c.Reason+" "+c.Message))
			}
		}
		return nil
	})
}
