package calc

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// choose returns the usable backends of a service port in one family by KEP-1669: the ready endpoints
// (all of them, when the Service publishes those that are not ready), and where there are none, those
// that still serve while they terminate. Sorted, each once.
//
// The traffic policies Local will choose among these by Backend.Local, per frontend.
func choose(c *model.Cluster, names []model.Name, svc *model.Service, sp *model.ServicePort, fam int) []nodestate.Backend {
	pick := func(want func(*model.ServiceEndpoint) bool) []nodestate.Backend {
		var out []nodestate.Backend
		for _, name := range names {
			sl := c.Slices[name]
			if sl == nil {
				continue
			}
			for _, ep := range sl.Ports {
				if ep.Name == sp.Name && ep.Protocol == sp.Protocol && ep.Port != 0 {
					out = appendBackends(out, c, sl.Endpoints, ep.Port, fam, want)
				}
			}
		}
		return compactBackends(out)
	}
	usable := pick(func(e *model.ServiceEndpoint) bool { return e.Ready || svc.PublishNotReady })
	if len(usable) == 0 {
		usable = pick(func(e *model.ServiceEndpoint) bool { return e.Serving && e.Terminating })
	}
	return usable
}

func appendBackends(out []nodestate.Backend, c *model.Cluster, eps []model.ServiceEndpoint, port uint16, fam int, want func(*model.ServiceEndpoint) bool) []nodestate.Backend {
	for i := range eps {
		if !want(&eps[i]) {
			continue
		}
		for _, a := range eps[i].Addrs {
			if a.IsValid() && carried(a) && family(a) == fam {
				out = append(out, nodestate.Backend{Addr: a, Port: port, Local: isLocal(c, &eps[i], a)})
			}
		}
	}
	return out
}

// isLocal reports whether an endpoint is on this node. One that names no node, as those of the API
// server and those written by hand, is where its address is.
func isLocal(c *model.Cluster, e *model.ServiceEndpoint, a netip.Addr) bool {
	if e.Node != "" {
		return e.Node == c.Local.Node
	}
	return c.Local.Endpoints[a] != nil || slices.Contains(c.Local.HostAddrs, a)
}

// nameless reports whether a slice has endpoints that name no node.
func nameless(sl *model.EndpointSlice) bool {
	return sl != nil && slices.ContainsFunc(sl.Endpoints, func(e model.ServiceEndpoint) bool { return e.Node == "" })
}

// compactBackends sorts and removes repetitions; one that is local anywhere is local.
func compactBackends(all []nodestate.Backend) []nodestate.Backend {
	slices.SortFunc(all, compareBackends)
	return slices.CompactFunc(all, func(a, b nodestate.Backend) bool { return a.Addr == b.Addr && a.Port == b.Port })
}

// hostPorts returns the host ports of a pod that runs here.
func hostPorts(c *model.Cluster, src source) []*port {
	pod := c.Pods[src.name]
	if pod == nil || pod.HostNetwork || pod.Finished || pod.Node != c.Local.Node || !hasHostPort(pod) {
		return nil
	}
	var own []netip.Addr
	for a, ep := range c.Local.Endpoints {
		if ep.Pod == src.name {
			own = append(own, a)
		}
	}
	slices.SortFunc(own, netip.Addr.Compare)
	var out []*port
	seen := map[string]bool{}
	for i := range pod.Ports {
		pp := &pod.Ports[i]
		if pp.HostPort == 0 {
			continue
		}
		for fam := range 2 {
			p := hostPort(src, pp, carriedOf(own, fam))
			if p != nil && !seen[p.text] {
				seen[p.text] = true
				out = append(out, p)
			}
		}
	}
	return out
}

func hasHostPort(pod *model.Pod) bool {
	return slices.ContainsFunc(pod.Ports, func(p model.PodPort) bool { return p.HostPort != 0 })
}

// hostPort describes one host port with the pod's addresses of one family.
func hostPort(src source, pp *model.PodPort, own []netip.Addr) *port {
	if len(own) == 0 {
		return nil
	}
	at := pp.HostIP
	switch {
	case !at.IsValid() || at.IsUnspecified() && at.Is4() == own[0].Is4():
		at = unspecified(own[0])
	case family(at) != family(own[0]) || !carried(at):
		return nil
	}
	id := nodestate.Frontend{Addr: at, Port: pp.HostPort, Proto: pp.Protocol}
	detail := "port " + portText(pp.HostPort, pp.Protocol)
	if !at.IsUnspecified() || !at.Is4() {
		detail += " on " + at.String()
	}
	p := &port{src: src, id: id, frontends: []nodestate.Frontend{id},
		value: nodestate.Service{ID: id, LocalOnly: true},
		rule:  nodestate.Rule{Kind: "HostPort", Name: src.name.String(), Detail: detail}}
	p.text = ruleText(p.rule)
	for _, a := range own {
		p.backends = append(p.backends, nodestate.Backend{Addr: a, Port: pp.Port, Local: true})
	}
	return p
}
