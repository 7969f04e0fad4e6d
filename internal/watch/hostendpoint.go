// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// ConvertHostEndpoint converts a HostEndpoint. What cannot be read of it allows nothing; one that
// names no interface is not in force.
func ConvertHostEndpoint(h *v3.HostEndpoint) (*model.HostEndpoint, []weirv1.Problem) {
	f := newFinding("HostEndpoint", h)
	s := &h.Spec
	out := &model.HostEndpoint{Name: h.Name, Labels: h.Labels, Node: s.Node, Interface: s.InterfaceName, DSCP: f.DSCP(h.Annotations)}
	for i, text := range s.ExpectedIPs {
		if a, ok := f.unicast(fmt.Sprintf("spec.expectedIPs[%d]", i), text); ok {
			out.ExpectedIPs = append(out.ExpectedIPs, a)
		}
	}
	if s.Node == "" {
		f.Add("spec.node", "", "is empty; the host endpoint is not in force", "give the name of the node")
		return nil, f.List
	}
	if out.Interface == "" && len(out.ExpectedIPs) == 0 {
		f.Add("spec.interfaceName", "", "is empty, and so are the expectedIPs; the host endpoint is not in force", `give the interface's name, or "*"`)
		return nil, f.List
	}
	for i, name := range s.Profiles {
		if name != model.ProfileDefaultAllow {
			f.Add(fmt.Sprintf("spec.profiles[%d]", i), name, "is not supported yet, and allows nothing", "use "+model.ProfileDefaultAllow+", or policies")
		}
		out.Profiles = append(out.Profiles, name)
	}
	p := calicoPolicy{finding: *f}
	for i, port := range s.Ports {
		proto := p.protocol(fmt.Sprintf("spec.ports[%d].protocol", i), &port.Protocol)
		if port.Name != "" && port.Port != 0 && proto != model.ProtocolAny {
			out.Ports = append(out.Ports, model.PodPort{Name: port.Name, Protocol: proto, Port: port.Port})
		}
	}
	return out, p.List
}
