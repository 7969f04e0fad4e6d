package nft

import (
	"slices"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Where a kube-proxy carries Services (nodestate.Settings.KubeProxy) Weir's maps have them for one purpose: what another node hands on to this one is
// for a backend of this node's own, which nobody but Weir knows. Such a packet is told by its sender, in translate, before kube-proxy's chains; these see
// neither a packet of its connection, because the kernel asks no more chains once a destination was translated, nor put their mark on it. Maps that
// anybody else's packets lead to have host ports alone.

// kubeProxyChains are in the place of those that look for what clients outside ask. own leads from a list to that of this node's own backends.
func kubeProxyChains(f table.Family, chain func(name string, rules ...string), front, atPort, own string) {
	// Which of the other nodes it was that sent this, if any.
	const sender = "meta mark and $mask == 0 meta mark set ether saddr map @" + expr.MapLinks
	const handed = "meta mark and $mask != 0 "
	chain(askedChain,
		sender,
		handed+own+"goto choose",
		"meta priority set none")
	chain(ownChainOutside,
		"meta priority set "+front+" map @"+mapServices+" goto choose",
		"meta priority set "+atPort+" map @"+mapHostPorts+" goto choose")
	chain(nodeChainOutside,
		sender,
		handed+"meta priority set "+atPort+" map @"+mapPortsOutside+" goto "+handedChain)
}

// kubeProxyMaps are the maps for a frontend of those where it is asked for from inside and from outside; "" = none. Beside a kube-proxy one of them is left.
func (p *port) kubeProxyMaps(inside, outside string, hostPort bool) (string, string) {
	switch {
	case !p.proxied:
		return inside, outside
	case hostPort:
		return inside, ""
	}
	return "", outside // and whom it refuses says the kube-proxy
}

// besides are those of a port's lists that are asked for where a kube-proxy carries it.
func (p *port) kubeProxyLists(all []list) []list {
	if !p.proxied || p.hostPort() {
		return all
	}
	return slices.DeleteFunc(all, func(l list) bool { return l.number&localList == 0 })
}

// hostPort reports whether it is a pod's host port, which is Weir's everywhere.
func (p *port) hostPort() bool {
	for _, svc := range p.faces {
		if svc.LocalOnly {
			return true
		}
	}
	return false
}

// toAsked leads to askedChain. Beside a kube-proxy that returns what is the kube-proxy's.
func toAsked(s *nodestate.State) string {
	if s.Settings.KubeProxy {
		return "jump " + askedChain
	}
	return "goto " + askedChain
}
