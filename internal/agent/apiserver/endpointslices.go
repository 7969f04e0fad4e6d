// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// UpdateSlices keeps those of the changed EndpointSlices that are of a Service: of Service the one
// that the API servers write themselves, which has the Service's name. Whoever may write to that
// namespace can label another one.
func UpdateSlices(of model.Name, kept, changes map[model.Name]*model.EndpointSlice) {
	for name, slice := range changes {
		if slice != nil && slice.Service == of && (of != Service || name == Service) {
			kept[name] = slice
		} else {
			delete(kept, name)
		}
	}
}

// Addresses returns the addresses and TCP ports of EndpointSlices, sorted.
func Addresses(slicesByName map[model.Name]*model.EndpointSlice) []string {
	var out []string
	for _, s := range slicesByName {
		for _, p := range s.Ports {
			if p.Protocol != model.ProtocolTCP {
				continue
			}
			for _, e := range s.Endpoints {
				for _, a := range e.Addrs {
					out = append(out, netip.AddrPortFrom(a, p.Port).String())
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Service is the Service of the API servers.
var Service = model.Name{Namespace: "default", Name: "kubernetes"}
