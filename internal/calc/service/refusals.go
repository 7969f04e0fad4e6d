// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// MaxRefusals bounds what is said of one object: a Service may name any number of addresses.
const MaxRefusals = 4

// What a refusal asks for.
const (
	actionAddress  = "name an address that is nobody else's"
	actionPort     = "choose another address or port"
	actionExternal = "name addresses in serviceExternalIPs, or ask for them to be put there"
	actionOpen     = "set serviceExternalIPs, or the admission plugin DenyServiceExternalIPs, so that not every namespace may take any address"
	ActionLeads    = "set serviceExternalIPs to the networks that external IPs are taken from, or choose another port"
	actionBackend  = "name the namespace's own pods; an administrator may label the namespace " + LabelBackends + "=" + BackendsAny
)

// refuse notes that something of a source is not in force.
func (s *Services) refuse(src Source, field, value, message, action string) {
	s.refusals[src] = append(s.refusals[src], nodestate.Refusal{Field: field, Value: value, Message: message, Action: action})
}

// lose notes that a frontend of a source is somebody else's, or with by == nil that it is not.
func (s *Services) lose(src Source, f nodestate.Frontend, by *port) {
	if by == nil {
		if delete(s.lost[src], f); len(s.lost[src]) == 0 {
			delete(s.lost, src)
		}
		return
	}
	if s.lost[src] == nil {
		s.lost[src] = map[nodestate.Frontend]string{}
	}
	s.lost[src][f] = by.rule.Kind + " " + by.rule.Name
}

// report writes what is said of the sources.
func (s *Services) report(sources map[Source]struct{}) {
	for src := range sources {
		about := nodestate.Object{Kind: "Service", Name: src.Name}
		if src.HostPorts {
			about.Kind = "Pod"
		}
		list := slices.Clone(s.refusals[src])
		for f, by := range s.lost[src] {
			list = append(list, nodestate.Refusal{Field: "address and port", Value: frontendText(f), Message: "belongs to " + by + ", which is older or has it as its own; it is left out", Action: actionPort})
		}
		slices.SortFunc(list, func(a, b nodestate.Refusal) int {
			return cmp.Or(compareBool(a.Allowed, b.Allowed), strings.Compare(a.Field, b.Field), strings.Compare(a.Value, b.Value), strings.Compare(a.Message, b.Message))
		})
		list = slices.Compact(list)
		if n := len(list) - MaxRefusals; n > 0 {
			list = append(list[:MaxRefusals:MaxRefusals], nodestate.Refusal{Field: list[MaxRefusals].Field, Value: strconv.Itoa(n) + " more", Message: "not in force either, for reasons as these", Action: list[MaxRefusals].Action})
		}
		if len(list) == 0 {
			s.refused.Delete(about)
		} else {
			s.refused.Put(about, list)
		}
	}
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func frontendText(f nodestate.Frontend) string {
	return netip.AddrPortFrom(f.Addr, f.Port).String() + "/" + f.Proto.String()
}

// addresses returns which of the addresses that a Service asks for it may have, of both families:
// those of spec.externalIPs, and those of its load balancer's status. note is called for the
// others; nil = nobody asks.
func (s *Services) addresses(svc *model.Service, note func(field, value, message, action string)) (external, balanced []netip.Addr) {
	pick := func(all []netip.Addr, field string, ofStatus bool) (out []netip.Addr) {
		for _, a := range all {
			why := s.rejectAddress(svc, a, ofStatus)
			if why == "" {
				out = append(out, a)
				continue
			}
			action := actionAddress
			if strings.HasSuffix(why, "serviceExternalIPs") {
				action = actionExternal
			}
			if note != nil {
				note(field, a.String(), why+"; it is left out", action)
			}
		}
		return out
	}
	return pick(svc.ExternalIPs, "spec.externalIPs", false), pick(svc.LBIPs, "status.loadBalancer.ingress", true)
}

// warnOpenExternalIPs says that a Service has addresses that nobody granted it.
func (s *Services) warnOpenExternalIPs(src Source, external []netip.Addr) {
	var words []string
	for _, a := range external[:min(len(external), MaxRefusals)] {
		words = append(words, a.String())
	}
	s.refusals[src] = append(s.refusals[src], nodestate.Refusal{Field: "spec.externalIPs", Value: strings.Join(words, " "), Allowed: true,
		Message: "every Service may name any address, because serviceExternalIPs is not set", Action: actionOpen})
}

// requestedAddrs is what a Service asks for, and since when.
type requestedAddrs struct {
	addrs   []netip.Addr
	created int64
	uid     string
}

// recordRequested keeps which addresses a Service asks for, nil for one that is gone. It returns
// those about which that is new.
func (s *Services) recordRequested(name model.Name, svc *model.Service) []netip.Addr {
	was, now := s.requested[name], requestedAddrs{}
	if svc != nil && len(svc.ExternalIPs)+len(svc.LBIPs) > 0 {
		now = requestedAddrs{slices.Concat(svc.ExternalIPs, svc.LBIPs), svc.Created, svc.UID}
	}
	if slices.Equal(was.addrs, now.addrs) && was.created == now.created && was.uid == now.uid {
		return nil
	}
	for _, a := range was.addrs {
		if delete(s.holders[a], name); len(s.holders[a]) == 0 {
			delete(s.holders, a)
		}
	}
	delete(s.requested, name)
	if len(now.addrs) > 0 {
		s.requested[name] = now
	}
	for _, a := range now.addrs {
		if s.holders[a] == nil {
			s.holders[a] = map[model.Name]struct{}{}
		}
		s.holders[a][name] = struct{}{}
	}
	return append(slices.Clone(was.addrs), now.addrs...)
}

// oldest returns which of the Services that ask for an address has done so for longest.
func (s *Services) oldest(a netip.Addr) (out model.Name) {
	first := true
	for name := range s.holders[a] {
		x, o := s.requested[name], s.requested[out]
		if first || cmp.Or(cmp.Compare(x.created, o.created), strings.Compare(x.uid, o.uid), table.CompareNames(name, out)) < 0 {
			out, first = name, false
		}
	}
	return out
}

// removeProtected takes from a Service's port the frontends that nodes need, and reports whether
// its cluster IP is left. The Service of the API servers has its own.
func (s *Services) removeProtected(p *port, svc *model.Service) bool {
	p.frontends = slices.DeleteFunc(p.frontends, func(f nodestate.Frontend) bool {
		if slices.Contains(p.asked, f) && !slices.Contains(p.internal, f) && s.protected.reservedFor(f, "") == "" && s.protected.mayForward(f) {
			s.refuse(p.src, "spec.externalIPs", frontendText(f), "API servers on nodes have this port, and nodes may reach them by any address while serviceExternalIPs is not set; it is left out", ActionLeads)
			return true
		}
		why := s.protected.reservedFor(f, "")
		if why == "" || svc.Name == cluster.APIService && slices.Contains(p.internal, f) {
			return false
		}
		field := "spec.clusterIPs"
		switch {
		case f.Addr.IsUnspecified():
			field = "spec.ports.nodePort"
		case slices.Contains(svc.ExternalIPs, f.Addr):
			field = "spec.externalIPs"
		case slices.Contains(svc.LBIPs, f.Addr):
			field = "status.loadBalancer.ingress"
		}
		s.refuse(p.src, field, frontendText(f), "nodes need this port: "+why+"; it is left out", actionPort)
		return true
	})
	return slices.Contains(p.frontends, p.id)
}

// removeProtectedHostPorts leaves out host ports that nodes need, and those at addresses that the
// node does not have.
func (s *Services) removeProtectedHostPorts(all []*port) []*port {
	return slices.DeleteFunc(all, func(p *port) bool {
		a := p.id.Addr
		if why := s.protected.reservedFor(p.id, s.protected.node); why != "" {
			s.refuse(p.src, "hostPort", frontendText(p.id), "the node needs this port: "+why+"; it is not served", actionPort)
			return true
		}
		if why := rejectLoopback(p.id); why != "" {
			s.refuse(p.src, "hostPort", frontendText(p.id), why+"; it is not served", "name 127.0.0.1 or ::1 and another port from 1024 on")
			return true
		}
		if a.IsUnspecified() || a.IsLoopback() || slices.Contains(s.protected.own, a) {
			return false
		}
		s.refuse(p.src, "hostIP", a.String(), "is no address of the node; the host port is not served", "name an address of the node, or none")
		return true
	})
}

// updateProtected brings the guards up to date, and marks in dirty what is to be looked at again as
// a whole. It returns the addresses for which the answer may be another one, and adds to affected
// the frontends.
func (s *Services) updateProtected(c *cluster.View, dirty *model.Dirty, affected map[nodestate.Frontend]struct{}) []netip.Addr {
	moved, ports := s.pods.update(c, dirty)
	for _, p := range ports {
		for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			affected[nodestate.Frontend{Addr: all, Port: p.port, Proto: p.proto}] = struct{}{}
		}
	}
	due := dirty.Has(model.KindNodes | model.KindSettings | model.KindPools | model.KindServiceCIDRs | model.KindNamespaces)
	if sl := cluster.APIServersOf(c.Cluster); sl != s.apiSlice {
		s.apiSlice, due = sl, true
	}
	if dirty.Has(model.KindLocal) {
		l := machineOf(c)
		due = due || !l.equal(s.machine)
		s.machine = l
	}
	if !due {
		return moved
	}
	now, before := protectedOf(c), s.protected
	s.protected = now
	if !now.equalExceptNodes(before) {
		dirty.Add(model.KindServices | model.KindPods)
	}
	others := now.movedNodes(before)
	for _, a := range others {
		for all, of := range s.narrow { // few: frontends at nodes' addresses
			for f := range of {
				if f.Addr == a {
					affected[f], affected[all] = struct{}{}, struct{}{}
				}
			}
		}
	}
	return append(moved, others...)
}
