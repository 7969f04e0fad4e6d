// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// CountEvery is how often connections are counted that the kernel's rule does not know.
const CountEvery = 5 * time.Second

// A rule counts the connections whose first packet it meets. Those that were open when it was
// written are counted by the agent: the rule lets through so many less, until they are over. A rule
// that is written anew has met none: then all that are open are of these.

// side are the connections of a pod that count together.
type side struct {
	pod    string // its interface
	egress bool   // those that it began
}

// older are the connections that were open when the rule of a side was written.
type older struct {
	most  uint32 // the limit that the rule is of
	open  map[conntrack.Tuple]bool
	chain string // the end of the name of its chain: another chain begins to count anew
}

func newOlder(most uint32, open map[conntrack.Tuple]bool) older {
	return older{most, open, "." + strconv.FormatInt(time.Now().UnixNano(), 36)}
}

// allowed is how many connections a side may have beside the older ones, and in which chain these
// are counted.
func (t *Table) allowed(of side, most uint32) (uint32, string) {
	o := t.older[of]
	return most - min(most, uint32(len(o.open))), o.chain
}

// note looks for older connections where a rule is new.
func (t *Table) note(s *nodestate.State) error {
	want := limited(s)
	maps.DeleteFunc(t.older, func(of side, _ older) bool { return want[of] == 0 })
	var fresh []side
	for of, most := range want {
		if was, is := t.older[of]; !is || was.most != most {
			fresh = append(fresh, of)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	open, err := t.opened(s)
	if err != nil {
		return fmt.Errorf("connections that are open do not count: %w", err)
	}
	for _, of := range fresh {
		t.older[of] = newOlder(want[of], open[of])
	}
	return nil
}

// Recount writes rules anew whose older connections are over, at the first time all: what another
// data plane carried may have come into the kernel's table after they were written.
func (t *Table) Recount(ctx context.Context, s *nodestate.State) error {
	some := false
	for _, o := range t.older {
		some = some || len(o.open) > 0
	}
	if !some && (t.recounted || len(t.older) == 0) {
		return nil
	}
	open, err := t.opened(s)
	if err != nil {
		return fmt.Errorf("counting connections that are over: %w", err)
	}
	changed := false
	for of, was := range t.older {
		over := !t.recounted && len(open[of]) > len(was.open)
		for c := range was.open {
			over = over || !open[of][c]
		}
		if over {
			changed, t.older[of] = true, newOlder(was.most, open[of])
		}
	}
	t.recounted = true
	if !changed {
		return nil
	}
	return t.apply(ctx, s)
}

// limited are the sides with a limit, with how many connections each may have.
func limited(s *nodestate.State) map[side]uint32 {
	out := map[side]uint32{}
	for name, q := range s.QoS {
		if n := q.Egress.Connections; n > 0 {
			out[side{name, true}] = n
		}
		if n := q.Ingress.Connections; n > 0 {
			out[side{name, false}] = n
		}
	}
	return out
}

// Tracked hands on the connections of a family that the kernel tracks.
func Tracked(six bool, each func(conntrack.Entry)) error {
	t, err := conntrack.Open()
	if err != nil {
		return err
	}
	defer t.Close()
	return t.Each(six, each)
}

// opened are the connections of sides with a limit, as the pod sees them.
func (t *Table) opened(s *nodestate.State) (map[side]map[conntrack.Tuple]bool, error) {
	want, pods := limited(s), map[netip.Addr]string{}
	for a, v := range s.Addrs {
		if v.Kind == nodestate.AddrEndpoint && (want[side{v.Interface, true}] > 0 || want[side{v.Interface, false}] > 0) {
			pods[a] = v.Interface
		}
	}
	out := map[side]map[conntrack.Tuple]bool{}
	add := func(at netip.Addr, egress bool, c conntrack.Tuple) {
		of := side{pods[at], egress}
		if want[of] == 0 {
			return
		}
		if out[of] == nil {
			out[of] = map[conntrack.Tuple]bool{}
		}
		out[of][c] = true
	}
	for _, f := range table.Families {
		err := t.tracked(f.Six, func(e conntrack.Entry) {
			if e.Orig.Proto != unix.IPPROTO_TCP || e.TCP.State == conntrack.TCPTimeWait || e.TCP.State == conntrack.TCPClose {
				return
			}
			add(e.Orig.Src, true, e.Orig)
			if s.Addrs[e.Orig.Src].Kind != nodestate.AddrHost { // what the node itself opens does not count
				add(e.Reply.Src, false, e.Reply)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
