package calc

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/model"
)

func (n portName) text() string { return "port " + n.proto.String() + " " + strconv.Quote(n.name) }

// matches reports whether a pod's port has this name.
func (n portName) matches(p *model.PodPort) bool {
	return p.Name == n.name && p.Name != "" && (n.proto == model.ProtocolAny || n.proto == p.Protocol)
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
		b.WriteString(portText(p.port, p.proto))
	}
	return b.String()
}

// resolvePorts replaces names by the ports that the pod has under them. A name that it does not have
// matches nothing.
func resolvePorts(ports []model.PortRange, pod *model.Pod) []model.PortRange {
	if !slices.ContainsFunc(ports, func(p model.PortRange) bool { return p.Named != "" }) {
		return ports
	}
	var out []model.PortRange
	for _, p := range ports {
		if p.Named == "" {
			out = append(out, p)
			continue
		}
		for _, n := range ownPorts(pod, portName{p.Protocol, p.Named}) {
			out = append(out, model.PortRange{Protocol: n.proto, First: n.port, Last: n.port})
		}
	}
	return out
}

func portRangeText(p model.PortRange) string {
	if p.Named != "" {
		return portName{p.Protocol, p.Named}.text()
	}
	return "port " + p.Protocol.String() + " " + strconv.Itoa(int(p.First)) + "-" + strconv.Itoa(int(p.Last))
}

// span is a closed interval of ports.
type span struct{ first, last uint16 }

// otherProto stands for every protocol that has no entries of its own.
const otherProto = model.Protocol(255)

// covers returns what a port range covers of a protocol. A range of ports of any protocol means those
// that have ports; only the full one means all of IP.
func covers(p model.PortRange, proto model.Protocol) (span, bool) {
	full := p.First == 0 && p.Last == 65535
	switch {
	case p.Named != "" || p.First > p.Last:
		return span{}, false
	case p.Protocol == model.ProtocolAny:
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

// splitSpans divides sorted disjoint spans into what lies in cut (sorted, disjoint) and what does not.
func splitSpans(from, cut []span) (in, out []span) {
	for _, f := range from {
		at, done := f.first, false
		for _, c := range cut {
			if c.last < at || c.first > f.last {
				continue
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
