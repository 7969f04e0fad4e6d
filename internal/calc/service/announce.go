// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
)

// Which node answers neighbours (ARP, neighbour solicitation) for a load balancer's address is a
// function of the cluster, so that all nodes agree without talking: of the nodes whose uplinks have
// the address's subnet the one with the highest digest of node and address (rendezvous hashing), so
// that a node that goes or comes moves only its own addresses. What differs from node to node is
// which other nodes it knows to be silent on the link: the next ones in the order watch those
// before them.
//
// Which subnets a node's uplinks have is its own word. So nodes whose primary address is in the
// subnet, by which the link shows whether they are there, come before all others of their kind; and
// of an address that a node came to claim later the link has to report first.

// watchers is how many of the nodes that come next watch those before them.
const watchers = 2

// announcer is a node that may answer.
type announcer struct {
	name    string
	digest  uint64
	primary [2]netip.Addr // by family
	addrs   [2]netip.Addr // by family, as others ask whether it is there: the other family's where it has none
	link    [6]byte       // the MAC address that answers then
	subnets []netip.Prefix
	ready   bool
	silent  [2]bool // as addrs
	unseen  [2]bool // as addrs: it came to claim the address later, and was not found there yet
}

func (a announcer) equal(b announcer) bool {
	return a.name == b.name && a.primary == b.primary && a.addrs == b.addrs && a.link == b.link && a.ready == b.ready && a.silent == b.silent &&
		a.unseen == b.unseen && slices.Equal(a.subnets, b.subnets)
}

// on reports whether one of the node's subnets has an address.
func (a announcer) on(at netip.Addr) bool { return model.Within(a.subnets, at) }

// announcements keeps what this node answers for, by Service.
type announcements struct {
	nodes []announcer
	pools []netip.Prefix // of load balancers
	own   []netip.Addr   // endpoints of this node that answer by themselves
	wide  bool           // every load balancer's address, and pods
	// rejectAddress are the addresses of nodes and gateways, each of which answers for its own,
	// whatever a Service says; with the time in Unix seconds when a node came to claim it that did
	// not have it at first, else 0.
	taken map[netip.Addr]int64
	// sourceRanges is serviceExternalIPs.
	admitted []netip.Prefix
	holders  map[netip.Addr][]model.Name
	of       map[model.Name][]netip.Addr
	results  map[netip.Addr]announcement
	// affected are the Services for which the last update may have come to another answer.
	concerned map[model.Name]struct{}
}

// announcement is the outcome for one address.
type announcement struct {
	ours  bool
	watch []watchedNode
}

// watchedNode is an address at which a node is asked, and its MAC address.
type watchedNode struct {
	addr netip.Addr
	link [6]byte
}

func newAnnouncements() *announcements {
	return &announcements{holders: map[netip.Addr][]model.Name{}, of: map[model.Name][]netip.Addr{}, results: map[netip.Addr]announcement{}}
}

const inputsAnnounced = model.KindNodes | model.KindPools | model.KindBlocks | model.KindLocal | model.KindSettings

// update brings the answers up to date. touched are the Services that may have changed, after the
// index of their slices followed.
func (n *announcements) update(c *cluster.View, dirty *model.Dirty, s *Services) (changed bool) {
	all := dirty.Has(model.KindServices | model.KindSlices)
	if all || dirty.Has(inputsAnnounced) {
		nodes, pools, wide := announcers(c), balancerPools(c), c.Settings.L2Reachability
		taken := notAnnounced(c)
		own := slices.DeleteFunc(ownAnswers(c, wide), func(a netip.Addr) bool { _, is := taken[a]; return is })
		if !slices.EqualFunc(nodes, n.nodes, announcer.equal) || !slices.Equal(pools, n.pools) || wide != n.wide || !maps.Equal(taken, n.taken) ||
			!slices.Equal(n.admitted, c.Settings.ServiceExternalIPs) {
			all = true
		}
		changed = all || !slices.Equal(own, n.own)
		all = all || dirty.Has(model.KindBlocks)
		changed = changed || all
		n.nodes, n.pools, n.own, n.wide, n.taken, n.admitted = nodes, pools, own, wide, taken, c.Settings.ServiceExternalIPs
	}
	affected := map[netip.Addr]struct{}{}
	n.concerned = map[model.Name]struct{}{}
	for src := range s.Touched {
		if !src.HostPorts {
			n.index(c, s, src.Name, affected)
		}
	}
	if all {
		for name := range c.Services {
			n.index(c, s, name, affected)
		}
		for name := range n.of {
			if c.Services[name] == nil { // it had no ports that this node carries, so nothing else noticed
				n.index(c, s, name, affected)
			}
		}
		for a := range n.holders {
			affected[a] = struct{}{}
		}
	}
	for a := range affected {
		before, had := n.results[a]
		holders := n.holders[a]
		if len(holders) == 0 {
			delete(n.results, a)
			changed = changed || had
			continue
		}
		now := n.elect(c, a, c.Services[holders[0]], s)
		n.results[a] = now
		for _, name := range holders {
			n.concerned[name] = struct{}{}
		}
		changed = changed || !had || now.ours != before.ours || !slices.Equal(now.watch, before.watch)
	}
	return changed
}

// index follows which addresses a Service has; those concerned are added to affected.
func (n *announcements) index(c *cluster.View, s *Services, name model.Name, affected map[netip.Addr]struct{}) {
	if len(n.of[name]) > 0 {
		n.concerned[name] = struct{}{}
	}
	for _, a := range n.of[name] {
		affected[a] = struct{}{}
		n.holders[a] = slices.DeleteFunc(n.holders[a], func(x model.Name) bool { return x == name })
		if len(n.holders[a]) == 0 {
			delete(n.holders, a)
		}
	}
	delete(n.of, name)
	svc := c.Services[name]
	if svc == nil {
		return
	}
	var addrs []netip.Addr
	external, balanced := s.addresses(svc, nil)
	for _, a := range balanced {
		if !c.Carried(a) {
			continue
		}
		if n.wide || slices.ContainsFunc(n.pools, func(p netip.Prefix) bool { return p.Contains(a) }) {
			addrs = append(addrs, a)
		}
	}
	if n.wide {
		for fam := range 2 {
			addrs = append(addrs, c.CarriedOf(external, fam)...)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	for _, a := range addrs {
		affected[a] = struct{}{}
		of := n.holders[a]
		i, _ := slices.BinarySearchFunc(of, name, table.CompareNames)
		n.holders[a] = slices.Insert(of, i, name)
	}
	if len(addrs) > 0 {
		n.of[name] = addrs
	}
}

// answers reports whether this node answers for an address of a Service.
func (n *announcements) answers(name model.Name, a netip.Addr) bool {
	return n.results[a].ours && slices.Contains(n.holders[a], name)
}

// elect says whether this node answers for an address, and which nodes it watches to take over from
// them.
func (n *announcements) elect(c *cluster.View, a netip.Addr, svc *model.Service, s *Services) announcement {
	if n.ofNode(a, svc) || n.ofPods(c, a) {
		return announcement{}
	}
	var on []announcer
	var link []netip.Prefix // the subnets of this node that have the address
	for _, node := range n.nodes {
		if node.on(a) {
			on = append(on, node)
		}
		if node.name == c.Local.Node {
			link = slices.DeleteFunc(slices.Clone(node.subnets), func(p netip.Prefix) bool { return !p.Contains(a) })
		}
	}
	fam := cluster.Family(a)
	var local map[string]bool
	if svc.ExternalLocal {
		local = s.serving(c, svc, fam)
	}
	near := func(x announcer) bool { return model.Within(link, x.primary[fam]) }
	of := digest(a.AsSlice())
	slices.SortFunc(on, func(x, y announcer) int {
		first := func(is func(announcer) bool) int {
			switch {
			case is(x) == is(y):
				return 0
			case is(x):
				return -1
			}
			return 1
		}
		return cmp.Or(first(func(x announcer) bool { return x.ready }),
			first(near),
			first(func(x announcer) bool { return local[x.name] }),
			cmp.Compare(mix(y.digest^of), mix(x.digest^of)), strings.Compare(x.name, y.name))
	})
	rank := slices.IndexFunc(on, func(x announcer) bool { return x.name == c.Local.Node })
	if rank < 0 {
		return announcement{}
	}
	out := announcement{ours: true}
	watches := rank <= watchers
	for _, before := range on[:rank] {
		out.ours = out.ours && (before.silent[fam] || watches && near(before) && before.unseen[fam])
		if w := before.addrs[fam]; watches && w.IsValid() {
			out.watch = append(out.watch, watchedNode{w, before.link})
		}
	}
	return out
}

// ofNode reports whether an address is a node's or a gateway's rather than a Service's. What an
// administrator has granted to Services a node that came to claim it after the Service was made
// does not take from it.
func (n *announcements) ofNode(a netip.Addr, svc *model.Service) bool {
	since, taken := n.taken[a]
	return taken && (since == 0 || since < svc.Created || !model.Within(n.admitted, a))
}

// ofPods reports whether a block of a node holds an address.
func (n *announcements) ofPods(c *cluster.View, a netip.Addr) bool {
	b := c.Owners.BlockOf(a)
	return b != nil && b.Node != cluster.LoadBalancers
}

// tables returns what the state holds: the addresses that this node answers for, and the nodes that
// it watches.
func (n *announcements) tables() (announced map[netip.Addr]bool, watched map[netip.Addr][6]byte) {
	announced, watched = map[netip.Addr]bool{}, map[netip.Addr][6]byte{}
	for a, r := range n.results {
		if r.ours {
			announced[a] = true
		}
		for _, w := range r.watch {
			watched[w.addr] = w.link
		}
	}
	for _, a := range n.own {
		announced[a] = true
	}
	return announced, watched
}

// announcers returns the nodes that may answer, by name.
func announcers(c *cluster.View) []announcer {
	var out []announcer
	for _, name := range slices.Sorted(maps.Keys(c.Nodes)) {
		node := c.Nodes[name]
		if _, excluded := node.Labels[model.LabelNoBalancers]; excluded || len(node.Subnets) == 0 {
			continue
		}
		a := announcer{name: name, digest: digest([]byte(name)), subnets: node.Subnets, ready: !node.NotReady && !node.Leaving, link: node.LinkAddress,
			primary: [2]netip.Addr{node.NodeAddr(), node.NodeAddr6()}}
		a.addrs = a.primary
		for fam := range a.addrs {
			if !a.addrs[fam].IsValid() {
				a.addrs[fam] = a.addrs[1-fam]
			}
			silent, known := c.Local.Silent[a.addrs[fam]]
			a.silent[fam] = silent && name != c.Local.Node
			a.unseen[fam] = !known && node.Since[a.addrs[fam]] != 0
		}
		out = append(out, a)
	}
	return out
}

// notAnnounced returns the addresses that nobody answers for but those who have them: of all nodes,
// of this machine and of its gateways; with the time of the claim where a node has it not from the
// start.
func notAnnounced(c *cluster.View) map[netip.Addr]int64 {
	out := map[netip.Addr]int64{}
	for _, node := range c.Nodes {
		for _, a := range node.Addrs {
			out[a] = node.Since[a]
		}
	}
	for _, list := range [][]netip.Addr{c.Local.HostAddrs, c.Local.Gateways} {
		for _, a := range list {
			out[a] = 0
		}
	}
	return out
}

func balancerPools(c *cluster.View) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range c.Pools {
		if p.LoadBalancer && p.CIDR.IsValid() {
			out = append(out, p.CIDR.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}

// ownAnswers returns the endpoints of this node that lie in one of its subnets.
func ownAnswers(c *cluster.View, wide bool) []netip.Addr {
	node := c.Nodes[c.Local.Node]
	if !wide || node == nil {
		return nil
	}
	var out []netip.Addr
	for a := range c.Local.Endpoints {
		if c.Carried(a) && slices.ContainsFunc(node.Subnets, func(p netip.Prefix) bool { return p.Contains(a) }) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// serving returns the nodes that have endpoints of a Service in one family that take new
// connections: ready ones or, on nodes without, such as serve while they terminate (KEP-1669).
func (s *Services) serving(c *cluster.View, svc *model.Service, fam int) map[string]bool {
	out := map[string]bool{}
	for _, name := range s.slices[svc.Name] {
		for i := range c.Slices[name].Endpoints {
			e := &c.Slices[name].Endpoints[i]
			if e.Node != "" && len(c.CarriedOf(e.Addrs, fam)) > 0 && (e.Ready || svc.PublishNotReady || e.Serving && e.Terminating) {
				out[e.Node] = true
			}
		}
	}
	return out
}

func digest(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b) // cannot fail
	return h.Sum64()
}

// mix spreads a digest over all of its bits (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
