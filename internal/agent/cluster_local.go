// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/announce"
	"github.com/weir-net/weir/internal/kubeproxy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// noteNodeAddr reports a node address that changed. Flows that were translated to the old one end;
// all that is computed from it follows.
func (c *cluster) noteNodeAddr(s *nodestate.State) {
	c.mu.Lock()
	before, now := c.snap.nodeAddrs, [2]netip.Addr{s.Settings.Node, s.Settings.Node6}
	c.snap.nodeAddrs = now
	c.mu.Unlock()
	for i := range now {
		if before[i].IsValid() && before[i] != now[i] {
			c.log.Warn("the node's address changed; connections translated to the old one end", "from", before[i].String(), "to", now[i].String())
		}
	}
}

// refreshLocal takes over what the machine has.
func (c *cluster) refreshLocal() {
	if !c.dirty.Has(model.KindLocal) || c.machine == nil {
		return
	}
	var node []netip.Addr
	if n := c.model.Nodes[c.node]; n != nil {
		node = append(node, n.NodeAddr())
		if c.model.CarriesIPv6() {
			node = append(node, n.NodeAddr6())
		}
		node = slices.DeleteFunc(node, func(a netip.Addr) bool { return !a.IsValid() })
	}
	pattern, err := regexp.Compile(c.model.Settings.DataIfaces)
	isUplink := func(name string) bool { return err == nil && pattern.MatchString(name) }
	m := c.machine.Facts(node, isUplink, c.model.Settings.InterfacePrefix)
	l := &c.model.Local
	by := c.servicesBy()
	l.KubeProxy, l.ProxyRules = by.Proxy, by.Mode != ""
	if c.reached != nil {
		l.APIServers = c.reached()
	}
	if c.chain != nil {
		m.Addrs = slices.Concat(m.Addrs, c.machine.AddrsOf(c.model.Settings.InterfacePrefix))
		slices.SortFunc(m.Addrs, netip.Addr.Compare)
		m.Addrs = slices.Compact(m.Addrs)
	}
	l.HostAddrs, l.Subnets, l.LinkMTU, l.Interfaces = m.Addrs, m.Subnets, m.MTU, m.Links
	l.Gateways, l.Neighbours = m.Gateways, c.machine.LinkAddresses(c.model.Nodes, m.Gateways)
	c.mu.Lock()
	before := c.snap.machine
	c.snap.machine = m
	c.mu.Unlock()
	if len(m.Missing) > 0 && (before.Addrs == nil || !slices.Equal(before.Missing, m.Missing)) {
		c.log.Error("no interface of this machine has an address that the Node object has", "node", c.node, "address", fmt.Sprint(m.Missing),
			"addresses", fmt.Sprint(m.Addrs))
	}
}

// noteSilent is called when more, or others, is known of the watched nodes: of each whether it does
// not answer on the link.
func (c *cluster) noteSilent(silent map[netip.Addr]bool) {
	c.later(func() {
		c.model.Local.Silent = silent
		c.dirty.Add(model.KindLocal)
	})
}

// noteDown is called when others of the probed nodes are taken as down.
func (c *cluster) noteDown(down map[netip.Addr]bool) {
	c.later(func() {
		c.model.Local.Down = down
		c.dirty.Add(model.KindLocal)
	})
}

// kubeProxy returns the name of a pod of kube-proxy on this node; ok is false while the cluster is
// not known.
func (c *cluster) kubeProxy() (name string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name = range c.proxies {
		break
	}
	return name, c.snap.state != nil
}

// noteHandling is called when somebody else than before carries Services on this node, or a
// kube-proxy comes or goes.
func (c *cluster) noteHandling(h kubeproxy.Handling) {
	c.mu.Lock()
	c.handling = h
	c.mu.Unlock()
	c.noteLocal()
}

// servicesBy says who carries Services on this node.
func (c *cluster) servicesBy() kubeproxy.Handling {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handling
}

// uplinks returns the uplinks with their subnets.
func (c *cluster) uplinks() []announce.Link {
	pattern, err := regexp.Compile(c.snapshot().config.Settings.DataIfaces)
	if err != nil || c.machine == nil {
		return nil
	}
	return c.machine.Uplinks(pattern.MatchString)
}

// noteLocal is called when the machine's interfaces or addresses changed.
func (c *cluster) noteLocal() {
	c.later(func() { c.dirty.Add(model.KindLocal) })
}

// isKubeProxy reports whether a pod is a kube-proxy of this node, by the labels and names that
// kubeadm, static manifests and distributions give it.
func (c *cluster) isKubeProxy(p *model.Pod) bool {
	return p != nil && p.Node == c.node && !p.Finished && p.HostNetwork &&
		(p.Labels["k8s-app"] == "kube-proxy" || p.Labels["component"] == "kube-proxy" || strings.HasPrefix(p.Name.Name, "kube-proxy"))
}

// Hostname returns the node's name where nobody says it: that of the machine.
func Hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
