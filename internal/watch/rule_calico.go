// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"

	policyv3 "github.com/weir-net/weir/api/policy/v3"
	"github.com/weir-net/weir/internal/model"
)

// rule converts a rule of projectcalico.org/v3, of ingress or of egress.
func (p *calicoPolicy) rule(field string, r *policyv3.Rule, in bool) model.Rule {
	out := model.Rule{Action: p.action(field+".action", r.Action), IPVersion: p.version(field+".ipVersion", r.IPVersion)}
	if r.HTTP != nil {
		p.bad(field+".http", "", "is not supported yet", "remove it")
	}
	proto := p.protocol(field+".protocol", r.Protocol)
	out.NotProtocol = p.protocol(field+".notProtocol", r.NotProtocol)
	if proto != model.ProtocolAny {
		out.Ports = []model.PortRange{{Protocol: proto, Last: 65535}}
	}
	if icmp, ok := p.icmp(field+".icmp", r.ICMP, proto); ok {
		out.Ports = []model.PortRange{icmp}
	}
	if icmp, ok := p.icmp(field+".notICMP", r.NotICMP, proto); ok {
		out.NotPorts = []model.PortRange{icmp}
	}
	if list := p.ports(field+".destination.ports", r.Destination.Ports, proto); list != nil {
		out.Ports = list
	}
	out.NotPorts = append(out.NotPorts, p.ports(field+".destination.notPorts", r.Destination.NotPorts, proto)...)
	out.SourcePorts = p.ports(field+".source.ports", r.Source.Ports, proto)
	out.NotSourcePorts = p.ports(field+".source.notPorts", r.Source.NotPorts, proto)
	source, destination := p.entity(field+".source", &r.Source.EntityRule), p.entity(field+".destination", &r.Destination.EntityRule)
	out.Peers = p.domains(field, r, in)
	if in {
		out.Other, out.Own = source, destination
	} else {
		out.Other, out.Own = destination, source
	}
	p.services(field, r, in, &out, proto)
	return out
}

// domains returns the peer of domain names, which destinations of egress rules that allow have, and
// nothing else that says which addresses these are.
func (p *calicoPolicy) domains(field string, r *policyv3.Rule, in bool) []model.Peer {
	if len(r.Source.Domains) > 0 {
		p.bad(field+".source.domains", r.Source.Domains[0], "is for destination of egress rules alone", "use nets")
	}
	d := &r.Destination
	if len(d.Domains) == 0 {
		return nil
	}
	field += ".destination.domains"
	switch {
	case in:
		p.bad(field, d.Domains[0], "is for egress rules alone", "use nets")
	case r.Action != v3.Allow:
		p.bad(field, d.Domains[0], "is for rules with the action Allow alone", "use nets")
	case len(d.Nets)+len(d.NotNets) > 0 || d.Selector+d.NotSelector+d.NamespaceSelector != "" || d.ServiceAccounts != nil || d.Services != nil:
		p.bad(field, d.Domains[0], "is set together with nets, selectors or services", "use one of them a rule")
	}
	out, bad := parseDomains(d.Domains)
	for _, i := range slices.Sorted(maps.Keys(bad)) {
		p.bad(fmt.Sprintf("%s[%d]", field, i), d.Domains[i], bad[i].Error(), "correct it")
	}
	return []model.Peer{{Domains: out}}
}

// parseDomains reads domain names and wildcards; bad are those that are neither.
func parseDomains(list []string) (out []string, bad map[int]error) {
	for i, text := range list {
		pattern, err := model.CalicoDomainPattern(text)
		if err != nil {
			if bad == nil {
				bad = map[int]error{}
			}
			bad[i] = err
			continue
		}
		out = append(out, pattern)
	}
	slices.Sort(out)
	return slices.Compact(out), bad
}

// services adds the match by a Service: of the addresses of its endpoints where they are the
// source, and of their addresses and ports where they are the destination. It is about the other
// end alone.
func (p *calicoPolicy) services(field string, r *policyv3.Rule, in bool, out *model.Rule, proto model.Protocol) {
	own, other, name := r.Source.Services, r.Destination.Services, ".destination"
	e := &r.Destination
	if in {
		own, other, name, e = other, own, ".source", &r.Source
	}
	if own != nil {
		p.bad(field, "", "has services at the end that the policy isolates", "use them in source of ingress, in destination of egress rules")
	}
	if other == nil {
		return
	}
	svc := model.Name{Namespace: other.Namespace, Name: other.Name}
	if svc.Namespace == "" {
		svc.Namespace = p.namespace
	}
	switch {
	case svc.Name == "" || svc.Namespace == "":
		p.bad(field+name+".services", svc.String(), "names no Service", "give name and namespace")
	case len(e.Nets)+len(e.NotNets) > 0 || e.Selector+e.NotSelector+e.NamespaceSelector != "" || e.ServiceAccounts != nil:
		p.bad(field+name+".services", svc.String(), "is set together with nets or selectors", "use one of them a rule")
	case in:
		out.Other = &model.Entity{Service: svc}
	case len(e.Ports)+len(e.NotPorts) > 0:
		p.bad(field+name+".services", svc.String(), "is set together with ports", "remove the ports: those of the endpoints count")
	default:
		out.Ports = []model.PortRange{{Protocol: proto, Service: svc}}
	}
}

func (p *calicoPolicy) action(field string, a v3.Action) model.Action {
	switch a {
	case v3.Allow:
		return model.Allow
	case v3.Deny:
		return model.Deny
	case v3.Pass:
		return model.Pass
	case v3.Log:
		return model.Log
	}
	p.bad(field, string(a), "is none of Allow, Deny, Log, Pass", "correct it")
	return model.Deny
}

func (p *calicoPolicy) version(field string, v *int) uint8 {
	switch {
	case v == nil:
		return 0
	case *v != 4 && *v != 6:
		p.bad(field, strconv.Itoa(*v), "is neither 4 nor 6", "correct it")
		return 0
	}
	return uint8(*v)
}

var protocolNames = map[string]model.Protocol{
	"tcp": model.ProtocolTCP, "udp": model.ProtocolUDP, "sctp": model.ProtocolSCTP, "icmp": model.ProtocolICMP, "icmpv6": model.ProtocolICMPv6,
	"udplite": 136,
}

func (p *calicoPolicy) protocol(field string, v *numorstring.Protocol) model.Protocol {
	if v == nil {
		return model.ProtocolAny
	}
	if n, err := v.NumValue(); err == nil && n > 0 {
		return model.Protocol(n)
	}
	lower := v.ToV1()
	if n, ok := protocolNames[lower.StrVal]; ok {
		return n
	}
	p.bad(field, v.String(), "is none of TCP, UDP, SCTP, ICMP, ICMPv6, UDPLite, nor a number from 1 to 255", "correct it")
	return model.ProtocolAny
}

// icmp returns the messages that a match is about; ok is false when it is about all.
func (p *calicoPolicy) icmp(field string, m *v3.ICMPFields, proto model.Protocol) (r model.PortRange, ok bool) {
	if m == nil || m.Type == nil && m.Code == nil {
		return r, false
	}
	switch {
	case proto != model.ProtocolICMP && proto != model.ProtocolICMPv6:
		p.bad(field, "", "needs the protocol ICMP or ICMPv6", "give the protocol")
	case m.Type == nil:
		p.bad(field+".code", strconv.Itoa(*m.Code), "needs a type", "give the type")
	case *m.Type < 0 || *m.Type > 254:
		p.bad(field+".type", strconv.Itoa(*m.Type), "is not from 0 to 254", "correct it")
	case *m.Type == 0 && proto == model.ProtocolICMPv6:
		p.bad(field+".type", "0", "is reserved in ICMPv6", "correct it")
	case m.Code == nil:
		return model.PortRange{Protocol: proto, First: uint16(*m.Type) << 8, Last: uint16(*m.Type)<<8 | 255}, true
	case *m.Code < 0 || *m.Code > 255:
		p.bad(field+".code", strconv.Itoa(*m.Code), "is not from 0 to 255", "correct it")
	default:
		message := uint16(*m.Type)<<8 | uint16(*m.Code)
		return model.PortRange{Protocol: proto, First: message, Last: message}, true
	}
	return r, false
}

// ports converts a list of ports; nil when there are none.
func (p *calicoPolicy) ports(field string, list []numorstring.Port, proto model.Protocol) []model.PortRange {
	if len(list) > 0 && proto != model.ProtocolTCP && proto != model.ProtocolUDP && proto != model.ProtocolSCTP {
		p.bad(field, "", "needs the protocol TCP, UDP or SCTP", "give the protocol")
		return nil
	}
	var out []model.PortRange
	for i, x := range list {
		switch {
		case x.PortName != "":
			out = append(out, model.PortRange{Protocol: proto, Named: x.PortName})
		case x.MinPort > x.MaxPort:
			p.bad(fmt.Sprintf("%s[%d]", field, i), x.String(), "is no range", "correct it")
		default:
			out = append(out, model.PortRange{Protocol: proto, First: x.MinPort, Last: x.MaxPort})
		}
	}
	return out
}
