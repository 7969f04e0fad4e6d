// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
)

// Visit is a packet at one hook and what became of it there.
type Visit struct {
	Node   string
	Hook   sim.Hook
	Result sim.Result
}

func (v Visit) String() string {
	return fmt.Sprintf("%s/%s=%s: %s", v.Node, v.Hook, v.Result, v.Result.Packet)
}

// Journey is where a packet went.
type Journey struct {
	Visits []Visit
	// End is where it arrived: pod:<namespace/name>, node:<name>, host:<name>, internet; or drop,
	// kept (a fragment that waits for its first), or lost <where>.
	End    string
	Packet *packet.Packet
}

func (j *Journey) String() string {
	var b strings.Builder
	for _, v := range j.Visits {
		b.WriteString("\n    " + v.String())
	}
	fmt.Fprintf(&b, "\n    end: %s: %s", j.End, j.Packet)
	return b.String()
}

// leg is the next thing that happens to a packet; nil ends the journey.
type leg func(j *Journey, p *packet.Packet) (leg, *packet.Packet, error)

func (w *World) travel(first leg, p *packet.Packet) (*Journey, error) {
	j := &Journey{Packet: p}
	var err error
	for next := first; next != nil; {
		if len(j.Visits) > maxHops {
			return j, fmt.Errorf("the packet goes round in circles")
		}
		if next, p, err = next(j, p); err != nil {
			return j, err
		}
		if p != nil {
			j.Packet = p
		}
	}
	return j, nil
}

func (j *Journey) end(where string) (leg, *packet.Packet, error) {
	j.End = where
	return nil, nil, nil
}

func (w *World) subnets() []netip.Prefix {
	var all []netip.Prefix
	for _, m := range w.machines {
		all = append(all, m.Subnets...)
	}
	for _, h := range w.objects.hosts {
		all = append(all, h.Masked())
	}
	return all
}

// router routes between the subnets and to the internet, where every public address arrives.
func (w *World) router(from netip.Prefix) leg {
	return func(j *Journey, p *packet.Packet) (leg, *packet.Packet, error) {
		if p.IP.TTL <= 1 {
			return j.end("lost router TTL")
		}
		p = p.Clone()
		p.IP.TTL--
		for _, s := range w.subnets() {
			if s.Contains(p.IP.Dst) {
				return w.deliver(p.IP.Dst, macOf(Gateway(s))), p, nil
			}
		}
		if p.IP.Dst.IsPrivate() {
			next, _, err := j.end("lost router: no route to " + p.IP.Dst.String())
			return next, p, err
		}
		next, _, err := j.end("internet")
		return next, p, err
	}
}
