// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
)

// portName is what a rule calls a port. Protocol ProtocolAny asks for the name only. With a service
// it stands for the ports of that one's endpoints.
type portName struct {
	proto   model.Protocol
	name    string
	service model.Name
}

func (n portName) text() string {
	if n.service != (model.Name{}) {
		return n.proto.String() + " port of " + strconv.Quote(n.service.String())
	}
	return "port " + n.proto.String() + " " + strconv.Quote(n.name)
}

// matches reports whether a pod's port has this name.
func (n portName) matches(p *model.PodPort) bool {
	return n.service == (model.Name{}) && p.Name == n.name && p.Name != "" && (n.proto == model.ProtocolAny || n.proto == p.Protocol)
}

// numbered is a port of a protocol.
type numbered struct {
	proto model.Protocol
	port  uint16
}

// ownPorts returns the ports that a pod calls by a name, sorted; nil pod: none.
func ownPorts(pod *model.Pod, n portName) []numbered {
	if pod == nil {
		return nil
	}
	var out []numbered
	for i := range pod.Ports {
		if p := &pod.Ports[i]; n.matches(p) {
			out = append(out, numbered{p.Protocol, p.Port})
		}
	}
	slices.SortFunc(out, compareNumbered)
	return slices.Compact(out)
}

func compareNumbered(a, b numbered) int {
	if a.proto != b.proto {
		return int(a.proto) - int(b.proto)
	}
	return int(a.port) - int(b.port)
}

func numbersText(ports []numbered) string {
	var b strings.Builder
	for i, p := range ports {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(table.PortText(p.port, p.proto))
	}
	return b.String()
}

// nameOf returns what a port range asks for by name; ok is false for numbers.
func nameOf(p model.PortRange) (n portName, ok bool) {
	switch {
	case p.Service != (model.Name{}):
		return portName{proto: p.Protocol, service: p.Service}, true
	case p.Named != "":
		return portName{proto: p.Protocol, name: p.Named}, true
	}
	return portName{}, false
}

// portMatch is a condition on the ports of one end.
type portMatch struct {
	any     bool              // none of in is asked for
	in, not []model.PortRange // names are left only where they are the other end's
}

func newPortMatch(in, not []model.PortRange) portMatch {
	return portMatch{any: len(in) == 0, in: in, not: not}
}

// named reports whether it asks for ports by name.
func (m *portMatch) named() bool {
	is := func(p model.PortRange) bool { _, ok := nameOf(p); return ok }
	return slices.ContainsFunc(m.in, is) || slices.ContainsFunc(m.not, is)
}

// resolve replaces names by the ports that the pod has under them. A name that it does not have
// matches nothing.
func (m *portMatch) resolve(pod *model.Pod) {
	m.in, m.not = resolvePorts(m.in, pod), resolvePorts(m.not, pod)
}

func resolvePorts(ports []model.PortRange, pod *model.Pod) []model.PortRange {
	named := func(p model.PortRange) bool { _, ok := nameOf(p); return ok }
	if !slices.ContainsFunc(ports, named) {
		return ports
	}
	var out []model.PortRange
	for _, p := range ports {
		n, ok := nameOf(p)
		if !ok {
			out = append(out, p)
			continue
		}
		for _, own := range ownPorts(pod, n) {
			out = append(out, model.PortRange{Protocol: own.proto, First: own.port, Last: own.port})
		}
	}
	return out
}

// conditional reports whether any ports are told apart.
func (m *portMatch) conditional() bool { return !m.any || len(m.not) > 0 }

// spans returns the ports of a protocol that match for the peers of a class, sorted and disjoint.
func (m *portMatch) spans(c *class, proto model.Protocol) []span {
	all := []span{{0, 65535}}
	if !m.any {
		all = spansOf(m.in, c, proto)
	}
	if len(m.not) > 0 {
		_, all = splitSpans(all, spansOf(m.not, c, proto))
	}
	return all
}

func spansOf(ports []model.PortRange, c *class, proto model.Protocol) []span {
	var out []span
	for _, p := range ports {
		if n, ok := nameOf(p); ok {
			out = append(out, peerSpans(c, n, proto)...)
		} else if s, ok := covers(p, proto); ok {
			out = append(out, s)
		}
	}
	return mergeSpans(out)
}

// peerSpans returns the ports that the peers of a class call by a name.
func peerSpans(c *class, n portName, proto model.Protocol) []span {
	if c == nil {
		return nil
	}
	var out []span
	for _, a := range c.atoms {
		if a.named != nil && *a.named == n && a.number.proto == proto {
			out = append(out, span{a.number.port, a.number.port})
		}
	}
	return out
}

func portRangeText(p model.PortRange) string {
	if n, ok := nameOf(p); ok {
		return n.text()
	}
	return "port " + p.Protocol.String() + " " + strconv.Itoa(int(p.First)) + "-" + strconv.Itoa(int(p.Last))
}

// span is a closed interval of ports.
type span struct{ first, last uint16 }

// otherProto stands for every protocol that no rule names.
const otherProto = model.ProtocolAny

// covers returns what a port range covers of a protocol. A range of ports of any protocol means
// those that have ports; only the full one means all of IP.
func covers(p model.PortRange, proto model.Protocol) (span, bool) {
	full := p.First == 0 && p.Last == 65535
	switch {
	case p.First > p.Last:
		return span{}, false
	case p.Protocol == model.ProtocolAny: // above the comparison with otherProto
		hasPorts := proto == model.ProtocolTCP || proto == model.ProtocolUDP || proto == model.ProtocolSCTP
		return span{p.First, p.Last}, full || hasPorts
	}
	return span{p.First, p.Last}, p.Protocol == proto
}

// mergeSpans sorts spans and joins those that touch.
func mergeSpans(all []span) []span {
	slices.SortFunc(all, func(a, b span) int { return int(a.first) - int(b.first) })
	out := all[:0]
	for _, s := range all {
		if n := len(out); n > 0 && int(s.first) <= int(out[n-1].last)+1 {
			out[n-1].last = max(out[n-1].last, s.last)
			continue
		}
		out = append(out, s)
	}
	return out
}

// splitSpans divides sorted disjoint spans into what lies in cut (sorted, disjoint) and what does
// not.
func splitSpans(from, cut []span) (in, out []span) {
	for _, f := range from {
		at, done := f.first, false
		for len(cut) > 0 && cut[0].last < at { // those after f are behind it too
			cut = cut[1:]
		}
		for _, c := range cut {
			if c.first > f.last {
				break
			}
			if c.first > at {
				out = append(out, span{at, c.first - 1})
			}
			in = append(in, span{max(at, c.first), min(c.last, f.last)})
			if c.last >= f.last {
				done = true
				break
			}
			at = c.last + 1
		}
		if !done {
			out = append(out, span{at, f.last})
		}
	}
	return in, out
}

// portPrefix is the ports that share the first bits of port.
type portPrefix struct {
	port uint16
	bits uint8
}

// portPrefixes returns the fewest prefixes that make up a span.
func portPrefixes(s span) []portPrefix {
	var out []portPrefix
	for at, end := int(s.first), int(s.last)+1; at < end; {
		size := 1
		for bits := 16; ; bits-- {
			if bits == 0 || at%(size*2) != 0 || at+size*2 > end {
				out = append(out, portPrefix{uint16(at), uint8(bits)})
				break
			}
			size *= 2
		}
		at += size
	}
	return out
}

func (m *portMatch) equal(o *portMatch) bool {
	return m.any == o.any && slices.Equal(m.in, o.in) && slices.Equal(m.not, o.not)
}
