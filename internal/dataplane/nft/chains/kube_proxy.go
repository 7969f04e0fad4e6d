// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Where a kube-proxy carries Services (nodestate.Settings.KubeProxy) Weir's maps have them for one
// purpose: what another node hands on to this one is for a backend of this node's own, which nobody
// but Weir knows. Such a packet is known by its sender, in translate, before kube-proxy's chains;
// these see neither a packet of its connection, because the kernel asks no more chains once a
// destination was translated, nor put their mark on it. Maps that anybody else's packets lead to
// have host ports alone.

// kubeProxyChains are in the place of those that look for what clients outside ask. own leads from
// a list to that of this node's own backends.
func kubeProxyChains(f table.Family, chain func(name string, rules ...string), front, atPort, own string) {
	// Which of the other nodes it was that sent this, if any.
	const sender = "meta mark and $mask == 0 meta mark set ether saddr map @" + expr.MapLinks
	const handed = "meta mark and $mask != 0 "
	chain(askedChain,
		sender,
		handed+own+"goto choose",
		"meta priority set none")
	chain(ownChainOutside,
		"meta priority set "+front+" map @"+services.MapServices+" goto choose",
		"meta priority set "+atPort+" map @"+services.MapHostPorts+" goto choose")
	chain(nodeChainOutside,
		sender,
		handed+"meta priority set "+atPort+" map @"+services.MapPortsOutside+" goto "+handedChain)
}

// toAsked leads to askedChain. Alongside a kube-proxy that returns what is the kube-proxy's.
func toAsked(s *nodestate.State) string {
	if s.Settings.KubeProxy {
		return "jump " + askedChain
	}
	return "goto " + askedChain
}
