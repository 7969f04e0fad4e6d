package agent

import (
	"cmp"
	"net/netip"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// hostEndpointsOf returns a node's host endpoints, by name.
func hostEndpointsOf(c *model.Cluster, node string) []*model.HostEndpoint {
	var out []*model.HostEndpoint
	for _, h := range c.HostEndpoints {
		if h.Node == node {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b *model.HostEndpoint) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// hostProblems names the host endpoints of this node that judge nothing. uplinks are the interfaces with programs; standard is the
// data plane without eBPF.
func hostProblems(snap snapshot, uplinks []string, standard bool) []weirv1.Problem {
	var out []weirv1.Problem
	for _, h := range snap.hostEndpoints {
		p := weirv1.Problem{Object: "HostEndpoint " + h.Name, Field: "spec.interfaceName", Value: h.Interface}
		at := slices.IndexFunc(snap.machine.links, func(l model.LocalInterface) bool {
			return l.Name == h.Interface || h.Interface == "" && slices.ContainsFunc(l.Addrs, func(a netip.Addr) bool { return slices.Contains(h.ExpectedIPs, a) })
		})
		switch {
		case standard:
			p.Message, p.Action = "host endpoints are not in force with the data plane of standard Linux", "set FelixConfiguration spec.bpfEnabled to true"
		case h.Interface == model.AllInterfaces:
			continue
		case at < 0:
			p.Message, p.Action = "this node has no such interface; the host endpoint is not in force", "correct interfaceName or expectedIPs"
		case !slices.Contains(uplinks, snap.machine.links[at].Name):
			p.Value = snap.machine.links[at].Name
			p.Message, p.Action = "has no programs of Weir; the host endpoint is not in force there", "name the interface in FelixConfiguration spec.bpfDataIfacePattern"
		default:
			continue
		}
		out = append(out, p)
	}
	return out
}
