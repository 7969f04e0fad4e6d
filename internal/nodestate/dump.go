// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
)

// Dump writes the state as text: one line an entry, sorted, rule numbers with their names. Equal
// states have equal texts. The text is for people and for tests; nothing reads it back.
func Dump(w io.Writer, s *State) error {
	d := &dumper{w: bufio.NewWriter(w), rules: s.Rules}
	d.settings(&s.Settings)
	for _, a := range sortedKeys(s.Addrs, netip.Addr.Compare) {
		d.addr(a, s.Addrs[a])
	}
	for _, p := range sortedKeys(s.Routes, netip.Prefix.Compare) {
		d.route(p, s.Routes[p])
	}
	for _, f := range slices.SortedFunc(s.Frontends.Keys(), Frontend.Compare) {
		d.frontend(f, s.Frontends.At(f))
	}
	for _, f := range slices.SortedFunc(s.Backends.Keys(), Frontend.Compare) {
		for _, b := range s.Backends.At(f) {
			d.line("backend", f.String(), "->", netip.AddrPortFrom(b.Addr, b.Port).String(), flag(b.Local, "local"), flag(b.Spare, "spare"))
		}
	}
	for _, f := range slices.SortedFunc(s.SourceRanges.Keys(), Frontend.Compare) {
		for _, p := range s.SourceRanges.At(f) {
			d.line("source-range", f.String(), "<-", p.String())
		}
	}
	byName := func(a, b model.Name) int { return strings.Compare(a.String(), b.String()) }
	for _, n := range slices.SortedFunc(s.HealthChecks.Keys(), byName) {
		h := s.HealthChecks.At(n)
		d.line("health-check", n.String(), fmt.Sprintf("port=%d local=%d", h.Port, h.Local))
	}
	byObject := func(a, b Object) int { return cmp.Or(strings.Compare(a.Kind, b.Kind), byName(a.Name, b.Name)) }
	for _, o := range slices.SortedFunc(s.Refused.Keys(), byObject) {
		for _, r := range s.Refused.At(o) {
			what := "refused"
			if r.Allowed {
				what = "pointed-at"
			}
			d.line(what, o.Kind, o.Name.String(), r.Field, r.Value, r.Message)
		}
	}
	for _, a := range slices.SortedFunc(s.Peers.Keys(), netip.Addr.Compare) {
		d.line("peer", a.String(), "class="+hex(s.Peers.At(a)))
	}
	for _, p := range sortedKeys(s.PeerCIDRs, netip.Prefix.Compare) {
		d.line("peer", p.String(), "class="+hex(s.PeerCIDRs[p]))
	}
	for _, k := range slices.SortedFunc(s.Policy.Keys(), PolicyKey.Compare) {
		d.policy(k, s.Policy.At(k))
	}
	for _, a := range sortedKeys(s.Staged, netip.Addr.Compare) {
		v := s.Staged[a]
		d.line("staged", a.String(), cmp.Or(d.isolation("ingress", v.Ingress), "ingress=none"), cmp.Or(d.isolation("egress", v.Egress), "egress=none"))
	}
	for _, r := range s.Unfit {
		d.line("unfit", r.String())
	}
	for _, o := range s.Overdrawn {
		d.line("overdrawn", o.String())
	}
	for _, c := range sortedKeys(s.Clients, cmp.Compare[uint64]) {
		d.line("client", fmt.Sprintf("netns=%d", c), s.Clients[c].String())
	}
	for _, index := range sortedKeys(s.Held, cmp.Compare[int]) {
		d.line("held", s.Held[index], fmt.Sprintf("interface=%d", index))
	}
	d.bgp(s.BGP)
	for _, a := range sortedKeys(s.Announced, netip.Addr.Compare) {
		d.line("announce", a.String())
	}
	for _, a := range sortedKeys(s.Watched, netip.Addr.Compare) {
		d.line("watch", a.String(), fmt.Sprintf("mac=%x", s.Watched[a]))
	}
	for _, k := range sortedKeys(s.HostEndpoints, HostInterface.Compare) {
		d.hostEndpoint("host-endpoint", k, s.HostEndpoints[k])
	}
	for _, k := range sortedKeys(s.HostStaged, HostInterface.Compare) {
		d.hostEndpoint("staged-host-endpoint", k, s.HostStaged[k])
	}
	for _, name := range sortedKeys(s.QoS, cmp.Compare[string]) {
		q := s.QoS[name]
		d.line("qos", fmt.Sprintf("interface=%s/%d", name, q.IfIndex), "owner="+q.Owner.String(), q.QoS.String())
	}
	d.gateways(s)
	d.names(&s.Names)
	d.sources(s)
	for _, a := range sortedKeys(s.Probed, netip.Addr.Compare) {
		d.line("probe", a.String(), flag(s.Probed[a], "down"))
	}
	d.wireGuard(&s.WireGuard4)
	d.wireGuard(&s.WireGuard6)
	for _, id := range slices.Sorted(s.Rules.Keys()) {
		d.line("rule", fmt.Sprintf("%08x", uint32(id)), s.Rules.At(id).String())
	}
	return d.w.Flush()
}

// String returns the dump of the state.
func (s *State) String() string {
	var b strings.Builder
	_ = Dump(&b, s) // a strings.Builder does not fail
	return b.String()
}

// Equal reports whether two states are the same.
func Equal(a, b *State) bool {
	return reflect.DeepEqual(a.Settings, b.Settings) &&
		maps.Equal(a.Addrs, b.Addrs) && maps.Equal(a.Routes, b.Routes) && EqualMaps(a.Frontends, b.Frontends) &&
		EqualMapsFunc(a.Backends, b.Backends, slices.Equal[[]Backend]) &&
		EqualMapsFunc(a.SourceRanges, b.SourceRanges, slices.Equal[[]netip.Prefix]) && EqualMaps(a.HealthChecks, b.HealthChecks) &&
		EqualMapsFunc(a.Refused, b.Refused, slices.Equal[[]Refusal]) && EqualMaps(a.Peers, b.Peers) &&
		maps.Equal(a.PeerCIDRs, b.PeerCIDRs) && EqualMaps(a.Policy, b.Policy) && EqualMaps(a.Rules, b.Rules) &&
		maps.Equal(a.Staged, b.Staged) && slices.Equal(a.Unfit, b.Unfit) && slices.Equal(a.Overdrawn, b.Overdrawn) &&
		maps.Equal(a.Clients, b.Clients) && maps.Equal(a.Held, b.Held) && maps.Equal(a.Announced, b.Announced) && maps.Equal(a.Watched, b.Watched) &&
		maps.Equal(a.HostEndpoints, b.HostEndpoints) && maps.Equal(a.HostStaged, b.HostStaged) &&
		a.WireGuard4.Equal(&b.WireGuard4) && a.WireGuard6.Equal(&b.WireGuard6) && reflect.DeepEqual(a.BGP, b.BGP) && maps.Equal(a.QoS, b.QoS) && maps.EqualFunc(a.Gateways, b.Gateways, slices.Equal) && a.Egress.Equal(&b.Egress) &&
		maps.Equal(a.Probed, b.Probed) && a.Names.Equal(&b.Names) && maps.EqualFunc(a.Sources, b.Sources, slices.Equal) && maps.Equal(a.Floating, b.Floating)
}

// Diff returns the lines of the dumps that are in one state only: "-" those of a, "+" those of b.
// Empty when the states are equal.
func Diff(a, b *State) string {
	left, right := strings.Split(a.String(), "\n"), strings.Split(b.String(), "\n")
	count := map[string]int{}
	for _, l := range right {
		count[l]++
	}
	var out strings.Builder
	for _, l := range left {
		if count[l] > 0 {
			count[l]--
			continue
		}
		out.WriteString("-" + l + "\n")
	}
	for _, l := range right {
		if count[l] > 0 {
			count[l]--
			out.WriteString("+" + l + "\n")
		}
	}
	return out.String()
}

type dumper struct {
	w     *bufio.Writer
	rules Map[RuleID, Rule]
}

// line writes the words that are not empty.
func (d *dumper) line(words ...string) {
	sep := ""
	for _, w := range words {
		if w != "" {
			_, _ = d.w.WriteString(sep + w) // Flush says what went wrong
			sep = " "
		}
	}
	_ = d.w.WriteByte('\n')
}

func (d *dumper) settings(s *Settings) {
	d.line("settings", settingsLine(s), flag(s.ToHost == model.ToHostDrop || s.ToHost == model.ToHostReturn, "to-host="+string(s.ToHost)),
		flag(s.VXLANFromPods, "vxlan-from-pods"), flag(s.IPIPFromPods, "ipip-from-pods"), flag(s.RPFStrict, "rpf=strict"), flag(s.Chained, "chained"), flag(s.Gateways, "gateways"), flag(s.Floating, "floating"),
		flag(s.IPIP.Accept, fmt.Sprintf("ipip-mtu=%d", s.IPIP.MTU)), flag(s.IPIP.HandOn, "hands-on=ipip"), flag(s.IPIP.Replaced, "ipip=by-vxlan"), flag(s.KubeProxy, "services=kube-proxy"), flag(s.ProxyRules, "rules-of=kube-proxy"), flag(s.HandOver, "hand-over"))
	for _, p := range s.DSROptOut {
		d.line("no-dsr", p.String())
	}
	for _, p := range sortedKeys(s.PoolRoutes, netip.Prefix.Compare) {
		d.line("pool", p.String(), fmt.Sprintf("mtu=%d", s.PoolRoutes[p]))
	}
	for _, p := range sortedKeys(s.NodeRoutes, netip.Prefix.Compare) {
		d.line("node-route", p.String(), fmt.Sprintf("mtu=%d", s.NodeRoutes[p]))
	}
}

func settingsLine(s *Settings) string {
	t, node := s.Timeouts, "none"
	if s.Node.IsValid() {
		node = s.Node.String()
	}
	if s.IPv6 {
		node += " ipv6=none"
		if s.Node6.IsValid() {
			node = strings.TrimSuffix(node, "none") + s.Node6.String()
		}
	}
	return fmt.Sprintf("node=%s dsr=%t connect-time=%s snat=%d-%d tunnel=%d/%d mtu=%d data-ifaces=%q pod-mtu=%d max-flows=%d host-nat=%t"+
		" timeouts=%v,%v,%v,%v,%v,%v,%v fragments=%v", node, s.DSR, s.ConnectTime, s.SNATFirst, s.SNATLast, s.Tunnel.Port, s.Tunnel.VNI,
		s.Tunnel.MTU, s.DataIfaces, s.PodMTU, s.MaxFlows, s.HostNAT,
		t.TCPSynSent, t.TCPEstablished, t.TCPFins, t.TCPReset, t.UDP, t.ICMP, t.Generic, t.Fragment)
}

func (d *dumper) addr(a netip.Addr, v Addr) {
	words := []string{"addr", a.String(), v.Kind.String(), flag(v.Primary, "primary"), flag(v.NATOutgoing, "nat-outgoing"), flag(v.Gateways, "gateways"),
		flag(v.SameLink, "same-link"), flag(v.Tunnel && !v.IPIP, "tunnel"), flag(v.IPIP, "ipip"), flag(v.NoIPIP, "no-ipip"), flag(v.Learned, "learned"),
		flag(v.NodePorts, "node-ports"), flag(v.KeepSource, "keep-source")}
	if v.MAC != [6]byte{} {
		words = append(words, fmt.Sprintf("mac=%x", v.MAC))
	}
	if v.Interface != "" || v.IfIndex != 0 {
		words = append(words, fmt.Sprintf("interface=%s/%d", v.Interface, v.IfIndex))
	}
	if v.Node.IsValid() {
		words = append(words, "node="+v.Node.String())
	}
	if v.Owner != (model.Name{}) {
		words = append(words, "owner="+v.Owner.String())
	}
	d.line(append(words, d.isolation("ingress", v.Ingress), d.isolation("egress", v.Egress))...)
}

func (d *dumper) hostEndpoint(kind string, k HostInterface, h HostEndpoint) {
	d.line(kind, fmt.Sprintf("interface=%d", k.IfIndex), flag(k.IPv6, "ipv6"), h.Name,
		d.isolation("ingress", h.HostIngress), d.isolation("egress", h.HostEgress),
		d.isolation("forward-ingress", h.ForwardIngress), d.isolation("forward-egress", h.ForwardEgress),
		d.isolation("pre-dnat", h.PreDNAT),
		d.isolation("untracked-ingress", h.UntrackedIngress), d.isolation("untracked-egress", h.UntrackedEgress),
		flag(h.DSCP > 0, fmt.Sprintf("dscp=%d", int(h.DSCP)-1)))
}

// Compare orders interfaces by index, IPv4 first.
func (k HostInterface) Compare(o HostInterface) int {
	six := func(k HostInterface) int {
		if k.IPv6 {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(k.IfIndex, o.IfIndex), six(k)-six(o))
}

func (d *dumper) isolation(name string, i Isolation) string {
	if i.Set == 0 {
		return ""
	}
	return fmt.Sprintf("%s=%s else %s", name, hex(i.Set), d.rule(i.Rule))
}

func (d *dumper) route(p netip.Prefix, r Route) {
	node := ""
	if r.Node.IsValid() {
		node = "node=" + r.Node.String()
	}
	d.line("route", p.String(), flag(r.Pool, "pool"), flag(r.Local, "local"), flag(r.Tunnel && !r.IPIP, "tunnel"), flag(r.IPIP, "ipip"), flag(r.Learned, "learned"),
		flag(r.SameLink, "same-link"), node)
}

func (d *dumper) frontend(f Frontend, s Service) {
	affinity := ""
	if s.Affinity != 0 {
		affinity = fmt.Sprintf("affinity=%ds", s.Affinity)
	}
	d.line("frontend", f.String(), "id="+s.ID.String(), affinity, flag(s.LocalOnly, "local-only"), flag(s.External, "external"),
		flag(s.LocalPolicy, "local-policy"), flag(s.Restricted, "restricted"), flag(s.HostBackend, "host-backend"), flag(s.Maglev, "maglev"), flag(s.Mode != "", "mode="+string(s.Mode)), d.rule(s.Rule))
}

func (d *dumper) policy(k PolicyKey, v PolicyValue) {
	what := k.Proto.String() + fmt.Sprintf(" port=%d/%d", k.Port, k.Len)
	if k.Head {
		what = "head" + protosText(v.Protos) + lensText(v.Lens)
	}
	if k.Sources != 0 {
		what = fmt.Sprintf("source-table=%d %s", k.Sources, what)
	}
	verdict := "deny"
	if v.Allow {
		verdict = "allow"
	}
	if v.Sources != 0 {
		d.line("policy", "set="+hex(k.Set), "class="+hex(k.Peer), what, fmt.Sprintf("by source-table=%d", v.Sources))
		return
	}
	d.line("policy", "set="+hex(k.Set), "class="+hex(k.Peer), what, verdict, flag(v.Log, "log"), flag(v.Undecided, "undecided"), d.rule(v.Rule))
}

// rule names a rule number.
func (d *dumper) rule(id RuleID) string {
	if r, ok := d.rules.Get(id); ok {
		return "by [" + r.String() + "]"
	}
	return fmt.Sprintf("by unknown rule %08x", uint32(id))
}

// String names the rule: kind, object, place in the object, and the tier, where it is another than
// the usual one.
func (r Rule) String() string {
	s := strings.TrimRight(r.Kind+" "+r.Name+" "+r.Detail, " ")
	if r.Tier != "" && r.Tier != model.TierDefault {
		s += " in tier " + r.Tier
	}
	return s
}

// String returns address:port/protocol.
func (f Frontend) String() string {
	return netip.AddrPortFrom(f.Addr, f.Port).String() + "/" + f.Proto.String()
}

// Compare orders frontends by address, port, protocol.
func (f Frontend) Compare(o Frontend) int {
	return cmp.Or(f.Addr.Compare(o.Addr), cmp.Compare(f.Port, o.Port), cmp.Compare(f.Proto, o.Proto))
}

// Compare orders policy keys by set, class, table of source ports, heads first, then protocol,
// port, length.
func (k PolicyKey) Compare(o PolicyKey) int {
	head := func(k PolicyKey) int {
		if k.Head {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(k.Set, o.Set), cmp.Compare(k.Peer, o.Peer), cmp.Compare(k.Sources, o.Sources), head(k)-head(o), cmp.Compare(k.Proto, o.Proto),
		cmp.Compare(k.Port, o.Port), cmp.Compare(k.Len, o.Len))
}

// String names the kind.
func (k AddrKind) String() string {
	switch k {
	case AddrHost:
		return "host"
	case AddrEndpoint:
		return "endpoint"
	case AddrNode:
		return "node"
	case AddrPod:
		return "pod"
	}
	return fmt.Sprintf("kind%d", uint8(k))
}

func protosText(bits uint8) string {
	var names []string
	for i, name := range []string{"tcp", "udp", "sctp", "icmp", "other"} {
		if bits>>i&1 != 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " protos=" + strings.Join(names, ",")
}

func lensText(bits uint32) string {
	var names []string
	for n := range 32 {
		if bits>>n&1 != 0 {
			names = append(names, fmt.Sprint(n))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " lens=" + strings.Join(names, ",")
}

func hex[T ~uint64](v T) string { return fmt.Sprintf("%016x", uint64(v)) }

func flag(on bool, name string) string {
	if on {
		return name
	}
	return ""
}

func sortedKeys[K comparable, V any](m map[K]V, compare func(a, b K) int) []K {
	return slices.SortedFunc(maps.Keys(m), compare)
}
