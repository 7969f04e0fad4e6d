// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agent/apiserver"
	"github.com/weir-net/weir/internal/agent/machine"
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// snapshot is what others may look at. Values in it are never changed.
type snapshot struct {
	state    *nodestate.State
	config   config.Result
	lastGood map[string]string
	problems []weirv1.Problem // of objects
	overlaps []calc.PoolOverlap
	tierless []weirv1.Problem // policies whose tier does not exist
	// idleEgress are annotations that would lead pods out by egress gateways, or let them send from
	// other addresses, and are not in force.
	idleEgress []weirv1.Problem
	replaced   []weirv1.Problem // pools whose tunnel is another than they ask for
	refused    []calc.Refusal   // claims of nodes
	// gateways and serviceCIDRs are addresses that no pod gets.
	gateways     []netip.Addr
	serviceCIDRs []netip.Prefix
	machine      machine.Facts
	// hostEndpoints are those of this node, by name.
	hostEndpoints []*model.HostEndpoint
	ipv6Pool      bool          // the cluster has an IPPool of IPv6
	nodeAddrs     [2]netip.Addr // IPv4, IPv6
	leaving       bool          // this node is about to be removed
	noIPIP        bool          // it has published that it cannot take IP in IP
	leadsOut      bool          // it has published that it leads pods out by egress gateways
	endpoints     int
	services      int
	nodes         int
	apiServers    []string
	controllers   []string
	stores        []string
	beat          time.Time // of the goroutine
}

// node is what problems of the node are about.
func (s snapshot) node(name string) problems.Node {
	return problems.Node{Name: name, State: s.state, Machine: s.machine, HostEndpoints: s.hostEndpoints, IPv6Pool: s.ipv6Pool}
}

// publish renews what others see.
func (c *cluster) publish(state *nodestate.State) {
	containers := map[string]bool{}
	for _, ep := range c.model.Local.Endpoints {
		containers[ep.ContainerID+" "+ep.Interface] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snap.state, c.snap.endpoints, c.snap.services = state, len(containers), len(c.model.Services)
	c.snap.nodes = len(c.model.Nodes)
	c.snap.refused, c.snap.replaced = c.calc.Refused(), problems.EncryptedPools(c.model)
	c.snap.idleEgress = slices.Concat(problems.IdleEgress(c.model), problems.RefusedSources(c.model, state), problems.RefusedFloating(c.calc.FloatingRefused()))
	c.snap.gateways, c.snap.serviceCIDRs = c.model.Local.Gateways, c.model.ServiceCIDRs
	c.snap.hostEndpoints = hostEndpointsOf(c.model, c.node)
	c.snap.ipv6Pool = false
	for _, p := range c.model.Pools {
		c.snap.ipv6Pool = c.snap.ipv6Pool || p.CIDR.Addr().Is6()
	}
	if own := c.model.Nodes[c.node]; own != nil {
		c.snap.leaving, c.snap.noIPIP, c.snap.leadsOut = own.Leaving, own.NoIPIP, own.Gateways
	}
	c.snap.apiServers, c.snap.controllers, c.snap.stores = apiserver.Addresses(c.servers), apiserver.Addresses(c.controllers), apiserver.Addresses(c.stores)
}

// snapshot returns what is known now.
func (c *cluster) snapshot() snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snap
}

func (c *cluster) apiServers() []string { return c.snapshot().apiServers }

func (c *cluster) lastGood() map[string]string { return c.snapshot().lastGood }

// policies counts the policies that apply to pods of this node.
func (s snapshot) policies() int {
	if s.state == nil {
		return 0
	}
	names := map[string]bool{}
	for _, r := range s.state.Rules.All() {
		if strings.HasSuffix(strings.TrimSuffix(r.Kind, ".projectcalico.org"), "Policy") && model.KindInForce(r.Kind) == r.Kind {
			names[r.Kind+" "+r.Name] = true
		}
	}
	return len(names)
}

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
