// SPDX-License-Identifier: Apache-2.0

package recommend

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/terminal"
)

// writer writes YAML with comments. What comments say came from nodes and objects: it stays on its
// line.
type writer struct {
	strings.Builder
}

// line writes a line below so many levels.
func (w *writer) line(level int, format string, args ...any) {
	fmt.Fprintf(w, "%s%s\n", strings.Repeat("  ", level), fmt.Sprintf(format, args...))
}

func (w *writer) comment(level int, text string) { w.line(level, "# %s", terminal.OneLine(text)) }

// scalar is a text as YAML has it.
func scalar(s string) string {
	text, err := yaml.Marshal(s)
	if err != nil || strings.Count(string(text), "\n") != 1 {
		return fmt.Sprintf("%q", s)
	}
	return strings.TrimSuffix(string(text), "\n")
}

// YAML returns the policies for `kubectl apply -f` and `weir apply -f`, below a comment of these
// lines.
func (s *Set) YAML(about ...string) string {
	w := &writer{}
	for _, text := range about {
		w.comment(0, text)
	}
	if len(s.Unsure) > 0 {
		w.comment(0, "UNSURE, or to be known:")
	}
	for _, text := range s.Unsure {
		w.comment(0, "- "+text)
	}
	// The one that isolates all pods comes last: objects are applied one after the other, and
	// nothing that was seen is to end meanwhile.
	for _, p := range append(slices.Clone(s.policies), &policy{name: defaultDeny}) {
		w.line(0, "---")
		s.write(w, p)
	}
	return w.String()
}

// kind returns the apiVersion and the kind of the policies.
func (s *Set) kind() (apiVersion, kind string) {
	switch {
	case s.Staged:
		return "projectcalico.org/v3", "StagedNetworkPolicy"
	case s.Calico:
		return "projectcalico.org/v3", "NetworkPolicy"
	}
	return "networking.k8s.io/v1", "NetworkPolicy"
}

func (s *Set) write(w *writer, p *policy) {
	apiVersion, kind := s.kind()
	if p.of == nil {
		w.comment(0, "Every pod of the namespace gets and sends what other policies allow, and nothing else.")
	} else {
		w.comment(0, p.of.name())
		if len(p.of.workloads) > 1 {
			w.comment(0, "UNSURE: no label tells these apart")
		}
		for _, text := range p.notes {
			w.comment(0, "UNSURE: "+text)
		}
	}
	w.line(0, "apiVersion: %s", apiVersion)
	w.line(0, "kind: %s", kind)
	w.line(0, "metadata:")
	w.line(1, "name: %s", scalar(p.name))
	w.line(1, "namespace: %s", scalar(s.Namespace))
	w.line(0, "spec:")
	if s.Staged {
		w.line(1, "stagedAction: Set")
	}
	switch {
	case s.Calico && p.of == nil:
		w.line(1, "selector: all()")
	case s.Calico:
		w.line(1, "selector: %s", scalar(p.of.selector.expression()))
	case p.of == nil:
		w.line(1, "podSelector: {}")
	default:
		p.of.selector.write(w, 1, "podSelector")
	}
	if s.Calico {
		w.line(1, "types: [Ingress, Egress]")
	} else {
		w.line(1, "policyTypes: [Ingress, Egress]")
	}
	for dir, name := range []string{"ingress", "egress"} {
		if len(p.rules[dir]) == 0 {
			continue
		}
		w.line(1, "%s:", name)
		for _, r := range p.rules[dir] {
			if s.Calico {
				s.writeCalico(w, dir, r)
			} else {
				s.writeRule(w, dir, r)
			}
		}
	}
}

// write writes a label selector.
func (s *selector) write(w *writer, level int, field string) {
	if len(s.equals)+len(s.absent)+len(s.notIn) == 0 {
		w.line(level, "%s: {}", field)
		return
	}
	w.line(level, "%s:", field)
	level += strings.Count(field, "- ") // the fields of a list's item
	if len(s.equals) > 0 {
		w.line(level+1, "matchLabels:")
		for _, k := range slices.Sorted(maps.Keys(s.equals)) {
			w.line(level+2, "%s: %s", scalar(k), scalar(s.equals[k]))
		}
	}
	if len(s.absent)+len(s.notIn) == 0 {
		return
	}
	w.line(level+1, "matchExpressions:")
	for _, k := range slices.Sorted(slices.Values(s.absent)) {
		w.line(level+1, "- key: %s", scalar(k))
		w.line(level+2, "operator: DoesNotExist")
	}
	for _, k := range slices.Sorted(maps.Keys(s.notIn)) {
		w.line(level+1, "- key: %s", scalar(k))
		w.line(level+2, "operator: NotIn")
		w.line(level+2, "values: [%s]", list(s.notIn[k], scalar))
	}
}

// list writes values, sorted, each once.
func list(values []string, as func(string) string) string {
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = as(v)
	}
	return strings.Join(out, ", ")
}

// expression is the selector in the language of projectcalico.org/v3. Labels have no quotes
// (RFC 1123 and the API's own rules for values).
func (s *selector) expression() string {
	quote := func(v string) string { return "'" + v + "'" }
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(s.equals)) {
		parts = append(parts, k+" == "+quote(s.equals[k]))
	}
	for _, k := range slices.Sorted(slices.Values(s.absent)) {
		parts = append(parts, "!has("+k+")")
	}
	for _, k := range slices.Sorted(maps.Keys(s.notIn)) {
		parts = append(parts, k+" not in { "+list(s.notIn[k], quote)+" }")
	}
	if len(parts) == 0 {
		return "all()"
	}
	return strings.Join(parts, " && ")
}

// writeRule writes a rule of a NetworkPolicy of networking.k8s.io/v1.
func (s *Set) writeRule(w *writer, dir int, r *rule) {
	w.line(1, "- %s:", []string{"from", "to"}[dir])
	for _, p := range r.peers {
		w.comment(2, p.comment)
		if p.family == nil {
			w.line(2, "- ipBlock:")
			w.line(4, "cidr: %s", scalar(p.net.String()))
			if len(p.except) > 0 {
				w.line(4, "except:")
			}
			for _, n := range p.except {
				w.line(4, "- %s", scalar(n.String()))
			}
			continue
		}
		level, field := 2, "- podSelector"
		if p.family.namespace != s.Namespace {
			w.line(2, "- namespaceSelector:")
			w.line(4, "matchLabels:")
			w.line(5, "%s: %s", corev1.LabelMetadataName, scalar(p.family.namespace))
			level, field = 3, "podSelector"
		}
		p.family.selector.write(w, level, field)
	}
	w.line(2, "ports:")
	for _, p := range runs(r.ports) {
		w.line(2, "- protocol: %s", strings.ToUpper(p.proto.String()))
		w.line(3, "port: %d", p.first)
		if p.last > p.first {
			w.line(3, "endPort: %d", p.last)
		}
	}
}

// run are ports that follow each other.
type run struct {
	proto       model.Protocol
	first, last uint16
}

// runs sums up ports in their order: three that follow each other are a range.
func runs(ports []port) (out []run) {
	for i := 0; i < len(ports); {
		j := i
		for j+1 < len(ports) && ports[j+1].proto == ports[i].proto && ports[j+1].port == ports[j].port+1 {
			j++
		}
		if j-i < 2 {
			j = i
		}
		out = append(out, run{ports[i].proto, ports[i].port, ports[j].port})
		i = j + 1
	}
	return out
}

// writeCalico writes rules of projectcalico.org/v3: each is about one protocol, and about pods of
// one selector or about networks.
func (s *Set) writeCalico(w *writer, dir int, r *rule) {
	byProto := map[model.Protocol][]port{}
	for _, p := range r.ports {
		byProto[p.proto] = append(byProto[p.proto], p)
	}
	var nets []*peer
	for _, p := range r.peers {
		if p.family != nil {
			s.writeCalicoPeer(w, dir, []*peer{p}, byProto)
		} else if len(p.except) > 0 {
			s.writeCalicoPeer(w, dir, []*peer{p}, byProto)
		} else {
			nets = append(nets, p)
		}
	}
	for _, four := range []bool{true, false} { // ICMP is of one family
		var of []*peer
		for _, p := range nets {
			if p.net.Addr().Is4() == four {
				of = append(of, p)
			}
		}
		if len(of) > 0 {
			s.writeCalicoPeer(w, dir, of, byProto)
		}
	}
}

func (s *Set) writeCalicoPeer(w *writer, dir int, peers []*peer, byProto map[model.Protocol][]port) {
	for _, p := range peers {
		if p.family != nil {
			w.comment(1, p.comment)
		} else {
			w.comment(1, p.net.String()+": "+p.comment)
		}
	}
	for _, proto := range slices.Sorted(maps.Keys(byProto)) {
		ports := byProto[proto]
		switch proto {
		case model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP:
			var texts []string
			for _, p := range runs(ports) {
				text := fmt.Sprint(p.first)
				if p.last > p.first {
					text = fmt.Sprintf("'%d:%d'", p.first, p.last)
				}
				texts = append(texts, text)
			}
			s.writeCalicoRule(w, dir, peers, strings.ToUpper(proto.String()), nil, strings.Join(texts, ", "))
		case model.ProtocolICMP, model.ProtocolICMPv6:
			for i := range ports {
				s.writeCalicoRule(w, dir, peers, map[model.Protocol]string{model.ProtocolICMP: "ICMP", model.ProtocolICMPv6: "ICMPv6"}[proto], &ports[i], "")
			}
		default:
			s.writeCalicoRule(w, dir, peers, fmt.Sprint(uint8(proto)), nil, "")
		}
	}
}

func (s *Set) writeCalicoRule(w *writer, dir int, peers []*peer, proto string, icmp *port, ports string) {
	w.line(1, "- action: Allow")
	w.line(2, "protocol: %s", proto)
	if icmp != nil {
		w.line(2, "icmp:")
		w.line(3, "type: %d", icmp.port>>8)
		w.line(3, "code: %d", icmp.port&0xff)
	}
	w.line(2, "%s:", []string{"source", "destination"}[dir])
	if f := peers[0].family; f != nil {
		if f.namespace != s.Namespace {
			w.line(3, "namespaceSelector: %s", scalar(corev1.LabelMetadataName+" == '"+f.namespace+"'"))
		}
		w.line(3, "selector: %s", scalar(f.selector.expression()))
	} else {
		w.line(3, "nets:")
		for _, p := range peers {
			w.line(3, "- %s", scalar(p.net.String()))
		}
		if len(peers[0].except) > 0 {
			w.line(3, "notNets:")
		}
		for _, n := range peers[0].except {
			w.line(3, "- %s", scalar(n.String()))
		}
	}
	if ports == "" {
		return
	}
	if dir == ingress {
		w.line(2, "destination:")
	}
	w.line(3, "ports: [%s]", ports)
}
