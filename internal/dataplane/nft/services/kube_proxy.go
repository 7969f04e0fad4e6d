// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"
)

// kubeProxyMaps are the maps for a frontend of those where it is asked for from inside and from
// outside; "" = none. Alongside a kube-proxy one of them is left.
func (p *port) kubeProxyMaps(inside, outside string, hostPort bool) (string, string) {
	switch {
	case !p.proxied:
		return inside, outside
	case hostPort:
		return inside, ""
	}
	return "", outside // and whom it refuses says the kube-proxy
}

// kubeProxyLists are those of a port's lists that are asked for where a kube-proxy carries it.
func (p *port) kubeProxyLists(all []list) []list {
	if !p.proxied || p.hostPort() {
		return all
	}
	return slices.DeleteFunc(all, func(l list) bool { return l.number&LocalList == 0 })
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
