// SPDX-License-Identifier: Apache-2.0

package port

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
)

// Name is what a rule calls a port. Protocol ProtocolAny asks for the name only. With a service
// it represents the ports of that one's endpoints.
type Name struct {
	Proto   model.Protocol
	name    string
	Service model.Name
}

// Text is how the texts of rules call it.
func (n Name) Text() string {
	if n.Service != (model.Name{}) {
		return n.Proto.String() + " port of " + strconv.Quote(n.Service.String())
	}
	return "port " + n.Proto.String() + " " + strconv.Quote(n.name)
}

// matches reports whether a pod's port has this name.
func (n Name) matches(p *model.PodPort) bool {
	return n.Service == (model.Name{}) && p.Name == n.name && p.Name != "" && (n.Proto == model.ProtocolAny || n.Proto == p.Protocol)
}

// Number is a port of a protocol.
type Number struct {
	Proto model.Protocol
	Port  uint16
}

// OfPod returns the ports that a pod calls by a name, sorted; nil pod: none.
func OfPod(pod *model.Pod, n Name) []Number {
	if pod == nil {
		return nil
	}
	var out []Number
	for i := range pod.Ports {
		if p := &pod.Ports[i]; n.matches(p) {
			out = append(out, Number{p.Protocol, p.Port})
		}
	}
	slices.SortFunc(out, compareNumbered)
	return slices.Compact(out)
}

func compareNumbered(a, b Number) int {
	if a.Proto != b.Proto {
		return int(a.Proto) - int(b.Proto)
	}
	return int(a.Port) - int(b.Port)
}

// NumbersText lists ports.
func NumbersText(ports []Number) string {
	var b strings.Builder
	for i, p := range ports {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(table.PortText(p.Port, p.Proto))
	}
	return b.String()
}

// NameOf returns what a port range asks for by name; ok is false for numbers.
func NameOf(p model.PortRange) (n Name, ok bool) {
	switch {
	case p.Service != (model.Name{}):
		return Name{Proto: p.Protocol, Service: p.Service}, true
	case p.Named != "":
		return Name{Proto: p.Protocol, name: p.Named}, true
	}
	return Name{}, false
}

// Peers are some other ends of rules, which may call ports by names: a class.
type Peers interface {
	// PortSpans returns the ports of a protocol that they call by a name.
	PortSpans(n Name, proto model.Protocol) []Span
}

// Match is a condition on the ports of one end.
type Match struct {
	Any     bool              // none of In is asked for
	In, Not []model.PortRange // names are left only where they are the other end's
}

// NewMatch returns the condition that ports are in ranges, if there are any, and not in others.
func NewMatch(in, not []model.PortRange) Match {
	return Match{Any: len(in) == 0, In: in, Not: not}
}

// Named reports whether it asks for ports by name.
func (m *Match) Named() bool {
	is := func(p model.PortRange) bool { _, ok := NameOf(p); return ok }
	return slices.ContainsFunc(m.In, is) || slices.ContainsFunc(m.Not, is)
}

// Resolve replaces names by the ports that the pod has under them. A name that it does not have
// matches nothing.
func (m *Match) Resolve(pod *model.Pod) {
	m.In, m.Not = resolvePorts(m.In, pod), resolvePorts(m.Not, pod)
}

func resolvePorts(ports []model.PortRange, pod *model.Pod) []model.PortRange {
	named := func(p model.PortRange) bool { _, ok := NameOf(p); return ok }
	if !slices.ContainsFunc(ports, named) {
		return ports
	}
	var out []model.PortRange
	for _, p := range ports {
		n, ok := NameOf(p)
		if !ok {
			out = append(out, p)
			continue
		}
		for _, own := range OfPod(pod, n) {
			out = append(out, model.PortRange{Protocol: own.Proto, First: own.Port, Last: own.Port})
		}
	}
	return out
}

// Conditional reports whether any ports are distinguished.
func (m *Match) Conditional() bool { return !m.Any || len(m.Not) > 0 }

// Equal reports whether two conditions are the same.
func (m *Match) Equal(o *Match) bool {
	return m.Any == o.Any && slices.Equal(m.In, o.In) && slices.Equal(m.Not, o.Not)
}

// everyPort is all ports. Nobody writes to it.
var everyPort = []Span{{0, 65535}}

// Spans returns the ports of a protocol that match for some peers, sorted and disjoint. The list is
// for reading.
func (m *Match) Spans(c Peers, proto model.Protocol) []Span {
	all := everyPort[:1:1]
	if !m.Any {
		all = SpansOf(m.In, c, proto)
	}
	if len(m.Not) > 0 {
		_, all = Split(all, SpansOf(m.Not, c, proto))
	}
	return all
}

// SpansOf returns the ports of a protocol that ranges cover for some peers, sorted and disjoint.
func SpansOf(ports []model.PortRange, c Peers, proto model.Protocol) []Span {
	var out []Span
	for _, p := range ports {
		if n, ok := NameOf(p); ok {
			out = append(out, c.PortSpans(n, proto)...)
		} else if s, ok := covers(p, proto); ok {
			out = append(out, s)
		}
	}
	return Merge(out)
}

// RangeText says what a range asks for.
func RangeText(p model.PortRange) string {
	if n, ok := NameOf(p); ok {
		return n.Text()
	}
	return "port " + p.Protocol.String() + " " + strconv.Itoa(int(p.First)) + "-" + strconv.Itoa(int(p.Last))
}
