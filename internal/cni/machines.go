// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/model"
)

func (s *Server) standsBy(a netip.Addr) bool { return s.Machines != nil && s.Machines.StandsBy(a) }

// SetReachable makes, or removes, the host's route to an address of an endpoint: that of a virtual
// machine comes to this node, or leaves it, while the endpoint stays. An endpoint that is gone is
// fine where nothing is to be made.
func (s *Server) SetReachable(ep model.LocalEndpoint, a netip.Addr, reachable bool) error {
	if reachable {
		return s.host.route(ep.IfIndex, a, macText(ep.MAC), s.Settings().RouteProtocol)
	}
	dst := hostNet(a)
	err := s.host.RouteDel(&netlink.Route{LinkIndex: ep.IfIndex, Dst: &dst, Scope: netlink.SCOPE_LINK})
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove the route to %s: %w", a, err)
	}
	return nil
}
