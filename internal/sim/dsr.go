package sim

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// wantsDSR: do answers to outside clients of the service go straight to them?
func (n *Node) wantsDSR(s nodestate.Service) bool {
	switch s.Mode {
	case model.ExternalModeTunnel:
		return false
	case model.ExternalModeDSR:
		return true
	}
	return n.state.Settings.DSR
}

// refusesDSR: is the client one whose answers never go straight to it?
func (n *Node) refusesDSR(client netip.Addr) bool {
	for _, p := range n.state.Settings.DSROptOut {
		if p.Contains(client) {
			return true
		}
	}
	return false
}
