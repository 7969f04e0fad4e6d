// SPDX-License-Identifier: Apache-2.0

package heal

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// podInterface is the node's side of the thief's.
const podInterface = "cali0thief0"

// addPod connects the thief as the CNI plugin does.
func (n *node) addPod() (index int, mac [6]byte) {
	n.t.Helper()
	shell(n.t, "ip link add %s netns /proc/%d/ns/net address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns /proc/%d/ns/net", podInterface, n.pid, n.pod.pid)
	gateway := "169.254.1.1"
	if n.fam.six {
		gateway = "fe80::ecee:eeff:feee:eeee"
	}
	n.shell("ip link set %s up; sysctl -qw net.ipv4.conf.%s.rp_filter=2; ip route add %s dev %s", podInterface, podInterface, n.fam.thief, podInterface)
	n.pod.shell("ip addr add %s/%d dev eth0; ip link set eth0 up; ip neigh add %s lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent; ip route add default via %s dev eth0 onlink",
		n.fam.thief, n.fam.bits(), gateway, gateway)
	// ip complains of a peer in another namespace, now and then, and shows the link all the same.
	text := strings.TrimSpace(n.shell("ip -o link show %s 2>/dev/null", podInterface))
	index, err := strconv.Atoi(text[:strings.Index(text, ":")])
	must(n.t, err)
	fmt.Sscanf(strings.TrimSpace(n.pod.shell("ip -o link show eth0 2>/dev/null | sed 's/.*ether \\([^ ]*\\).*/\\1/'")), "%02x:%02x:%02x:%02x:%02x:%02x", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5])
	return index, mac
}

// wrong is a state in which everything leads away from the API server: frontends at its address and
// at its cluster IP whose backend is the thief, routes to it by weir0, and a host endpoint of all
// interfaces that denies everything in both directions, failsafe ports too.
func (n *node) wrong(index int, mac [6]byte) *nodestate.State {
	c := model.NewCluster()
	c.Namespaces[namespace] = &model.Namespace{Name: namespace}
	own := &model.Node{Name: n.name}
	for _, f := range families {
		c.Pools[f.name] = &model.Pool{Name: f.name, CIDR: f.pods, VXLAN: model.EncapNever, NATOutgoing: true, BlockBits: f.bits() - 6, Workload: true}
		c.ServiceCIDRs = append(c.ServiceCIDRs, f.services)
		own.Addrs = append(own.Addrs, f.host(100+n.index))
		own.Subnets = append(own.Subnets, f.link)
	}
	c.Nodes[n.name] = own
	block := netip.PrefixFrom(n.fam.thief, n.fam.bits()-6).Masked()
	c.Blocks[block] = &model.Block{CIDR: block, Node: n.name}
	pod := model.Name{Namespace: namespace, Name: "thief"}
	c.Pods.Put(&model.Pod{Name: pod, Node: n.name, Addrs: []netip.Addr{n.fam.thief}})
	c.HostEndpoints["all"] = &model.HostEndpoint{Name: "all", Node: n.name, Interface: model.AllInterfaces, Labels: map[string]string{"role": "node"}}
	deny := &model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "nothing"}, Tier: model.TierDefault,
		Subject: model.Selector{Expression: "role == 'node'"}, AppliesIngress: true, AppliesEgress: true}
	c.Policies[deny.ID()] = deny
	c.Settings.FailsafeIn, c.Settings.FailsafeOut = nil, nil
	c.Settings.HostNAT = true
	var uplink int
	link := n.shell("ip -o link show eth0")
	if _, err := fmt.Sscanf(link, "%d: eth0", &uplink); err != nil {
		n.t.Fatalf("which index eth0 of %s has: %v: %q", n.name, err, link)
	}
	c.Local = model.Local{Node: n.name, HostAddrs: own.Addrs, Subnets: own.Subnets, LinkMTU: 1500,
		Interfaces: []model.LocalInterface{{Name: "eth0", IfIndex: uplink, Addrs: own.Addrs}},
		Endpoints: map[netip.Addr]*model.LocalEndpoint{n.fam.thief: {Pod: pod, ContainerID: "thief", Interface: podInterface, IfIndex: index, MAC: mac,
			Addrs: []netip.Addr{n.fam.thief}}}}
	s := *calc.Calc(c)

	id := nodestate.Frontend{Addr: n.fam.aside, Port: apiPort, Proto: model.ProtocolTCP}
	frontends, backends := s.Frontends.Edit(), s.Backends.Edit()
	for _, at := range []netip.AddrPort{n.api(false), n.api(true)} {
		face := nodestate.Frontend{Addr: at.Addr(), Port: at.Port(), Proto: model.ProtocolTCP}
		frontends.Set(face, nodestate.Service{ID: id, External: at == n.api(false)})
	}
	frontends.Set(id, nodestate.Service{ID: id})
	backends.Set(id, []nodestate.Backend{{Addr: n.fam.thief, Port: thiefPort, Local: true}})
	s.Frontends, s.Backends = frontends.Map(), backends.Map()
	routes := maps.Clone(s.Settings.PoolRoutes)
	if routes == nil {
		routes = map[netip.Prefix]int{}
	}
	for _, bits := range []int{n.fam.bits(), n.fam.bits() - 4} {
		routes[netip.PrefixFrom(n.fam.api, bits).Masked()] = 1400
	}
	s.Settings.PoolRoutes = routes
	return &s
}

// poison has a driver write the wrong state, fills all ports that the node's processes connect from
// with flows to the thief, and takes the thief away: nobody answers these flows, which would end
// them. It makes sure that no other process of the node reaches the API server.
func (n *node) poison() {
	n.t.Helper()
	n.narrow()
	var state bytes.Buffer
	must(n.t, gob.NewEncoder(&state).Encode(n.wrong(n.addPod())))
	if out, err := (task{Op: "poison", NFT: n.nft, BPFFS: n.bpffs + "/weir", Cgroup: n.cgroup}).run(n.space, &state); err != nil {
		n.t.Fatalf("poisoning the tables: %v", err)
	} else if out != "" {
		n.t.Logf("poisoning the tables: %s", out)
	}
	for _, at := range []netip.AddrPort{n.api(false), n.api(true)} {
		for what, from := range map[string]*space{"balanced where they connect": n.space, "balanced by packet": n.outside()} {
			if _, err := (task{Op: "ask", To: []netip.AddrPort{at}}).run(from, nil); err == nil || !strings.Contains(err.Error(), errThief.Error()) {
				n.t.Fatalf("processes that are %s reach something else than the thief at %s: %v", what, at, err)
			}
		}
	}
	out, err := task{Op: "occupy", To: []netip.AddrPort{n.api(false)}, Ports: n.ports}.run(n.outside(), nil)
	if err != nil {
		n.t.Fatalf("flows to the thief: %v", err)
	}
	if made, err := strconv.Atoi(out); err != nil || made < int(n.ports[1]-n.ports[0])/2 {
		n.t.Fatalf("flows to the thief: %q (%v), want most of ports %v", out, err, n.ports)
	}
	n.shell("ip link del %s", podInterface)
	if err := n.reaches(0, [2]uint16{}); err == nil {
		n.t.Fatal("other processes reach the API server, whatever the tables say")
	}
}

// reaches tries for some seconds to reach the API server, at its address and its cluster IP, from
// local ports, as processes do that are balanced where they connect, and as those that are not.
func (n *node) reaches(seconds int, from [2]uint16) error {
	ask := task{Op: "ask", To: []netip.AddrPort{n.api(false), n.api(true)}, Ports: from, Seconds: seconds}
	_, in := ask.run(n.space, nil)
	_, out := ask.run(n.outside(), nil)
	return errors.Join(in, out)
}
