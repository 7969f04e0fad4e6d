// SPDX-License-Identifier: Apache-2.0

package nodespec

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/lab/internal/plan"
)

// AzurePrograms are those of a node in a virtual network of Azure, which are in the folder of
// Weir's programs: Azure's CNI plugin, and the stand-in for CNS, which gives addresses
// (test/azurecni).
var AzurePrograms = []string{"azure-vnet", "azurecns"}

const (
	azureConf   = Base + "/azurecns.json"
	azureListen = "127.0.0.1:10090" // where the plugin asks
)

// azure adds what a node of AKS has: the plugin, the network configuration of the project for
// addresses of a subnet of pods, or of an overlay (cni/azure-linux-swift.conflist,
// cni/azure-linux-swift-overlay.conflist), and a service that gives addresses.
func (s *Spec) azure(in Inputs, m plan.Machine) error {
	ipam := object{"type": "azure-cns"}
	if in.Lab.Overlay {
		ipam["mode"] = "v4overlay"
	}
	conf, err := json.MarshalIndent(object{
		"cniVersion": "0.3.0", "name": "azure",
		"plugins": []object{
			{"type": "azure-vnet", "mode": "transparent", "executionMode": "v4swift", "ipsToRouteViaHost": []string{"169.254.20.10"}, "ipam": ipam},
			{"type": "portmap", "capabilities": object{"portMappings": true}, "snat": true},
		},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("CNI configuration of %s: %w", m.Name, err)
	}
	s.file(cniConf+"/10-azure.conflist", 0o644, string(conf)+"\n")
	pods, net := m.Interfaces[0].Pods, in.Lab.Pods
	if in.Lab.Overlay {
		net = m.Families[0].PodCIDR
		for a := net.Addr().Next(); net.Contains(a.Next()); a = a.Next() { // all but the last one
			pods = append(pods, a)
		}
	}
	service, err := json.MarshalIndent(object{
		"Listen": azureListen, "Overlay": in.Lab.Overlay, "Node": m.Addr, "NodeGateway": m.Families[0].Gateway,
		"Pods": pods, "PodNet": net, "PodGateway": net.Addr().Next(), "NonMasquerade": nonMasquerade(in.Lab),
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", m.Name, err)
	}
	s.file(azureConf, 0o644, string(service)+"\n")
	s.file(cniBin+"/azure-vnet", ModeLink, WeirPrograms+"/azure-vnet")
	s.link(in, "portmap")
	s.Daemons = append(s.Daemons, Daemon{Name: "azure-cns", Args: []string{WeirPrograms + "/azurecns", "--config", azureConf}})
	return nil
}

// nonMasquerade is where pods send to with their own addresses: other pods, and in a subnet of the
// virtual network all of that.
func nonMasquerade(l *plan.Lab) []netip.Prefix {
	if l.Overlay {
		return []netip.Prefix{l.Pods}
	}
	return []netip.Prefix{plan.VPC}
}
