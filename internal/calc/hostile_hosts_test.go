// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// An operator's host endpoint is in force whatever automatic ones there are: the controller makes
// these, they allow what no policy denies, and their names are its choice.
func TestHostileAutomaticHostEndpoint(t *testing.T) {
	hostile.Record(t, "the token of the controller displaces an operator's host endpoint by an automatic one", hostile.Controller, hostile.ControlPlane, hostile.Both)
	t.Parallel()
	for what, ends := range map[string]struct{ operators, automatic model.HostEndpoint }{
		"all interfaces": {model.HostEndpoint{Interface: model.AllInterfaces}, model.HostEndpoint{Interface: model.AllInterfaces}},
		"one interface":  {model.HostEndpoint{Interface: "eth0"}, model.HostEndpoint{Interface: "eth0"}},
		"one of all":     {model.HostEndpoint{Interface: model.AllInterfaces}, model.HostEndpoint{Interface: "eth0"}},
		"by addresses":   {model.HostEndpoint{Interface: model.AllInterfaces}, model.HostEndpoint{ExpectedIPs: []netip.Addr{addr("172.31.1.10")}}},
	} {
		c := hostFixture(model.Rule{Action: model.Deny})
		c.Local.Interfaces = []model.LocalInterface{{Name: "eth0", IfIndex: 2, Addrs: []netip.Addr{addr("172.31.1.10")}}}
		operators, automatic := ends.operators, ends.automatic
		operators.Name, operators.Node, operators.Labels = "operators", c.Local.Node, map[string]string{"host": "yes"}
		automatic.Name, automatic.Node, automatic.Profiles = "a-auto-hep", c.Local.Node, []string{model.ProfileDefaultAllow}
		automatic.Labels = map[string]string{model.HostEndpointCreatedBy: model.HostEndpointCreator}
		c.HostEndpoints = map[string]*model.HostEndpoint{"operators": &operators, "a-auto-hep": &automatic}
		s := Calc(c)
		if allow, _ := s.Verdict(s.HostEndpointAt(2, addr("172.31.1.10")).HostIngress, addr("9.9.9.9"), model.ProtocolTCP, nodestate.Ports{Dst: 5000}); allow {
			t.Errorf("%s: a port that the operator's policy denies is open", what)
		}
		automatic.Interface = "eth0"
		operators.Interface = "eth1"
		if got := Calc(c).HostEndpointAt(2, addr("172.31.1.10")).Name; got != "a-auto-hep" {
			t.Errorf("%s: %q is in force at an interface of which the operator says nothing", what, got)
		}
	}
}
