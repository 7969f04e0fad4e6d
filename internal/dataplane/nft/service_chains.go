package nft

import (
	"fmt"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/nodestate"
)

// serviceChains make the chains and sets of Services. Only the first packet of a flow comes by translate.
func (f family) serviceChains(t *Table, s *nodestate.State) {
	const front = "$ip daddr . meta l4proto . th dport"
	const atPort = "meta l4proto . th dport"
	chain := func(name string, rules ...string) { t.Chains[name] = Chain{Rules: f.rules(s, rules...)} }
	nat := func(name string, hook knftables.BaseChainHook, rules ...string) {
		t.Chains[name] = Chain{Type: knftables.NATType, Hook: hook, Priority: "dstnat", Rules: f.rules(s, rules...)}
	}
	restricted := front + " @" + setRestricted + " " + front + " . $ip saddr != @" + setRanges + " drop"
	nat("translate", knftables.PreroutingHook,
		"$ports iifname @"+setWorkloads+" goto inside",
		"$ports goto outside")
	nat("translate-own", knftables.OutputHook, "$ports goto inside")
	chain("inside",
		restricted,
		"meta priority set "+front+" map @"+mapServices+" goto choose",
		"$ip daddr @"+setOwn+" meta priority set "+atPort+" map @"+mapHostPorts+" goto choose",
		"$ip daddr != @"+setPorted+" return",
		"$ip daddr @"+setNodes+" "+atPort+" @"+setPortsLocal+" return",
		"meta priority set "+atPort+" map @"+mapPorts+" goto choose")
	chain("outside",
		restricted,
		"meta priority set "+front+" map @"+mapServicesOutside+" goto choose",
		"meta priority set "+front+" map @"+mapServices+" goto choose",
		"$ip daddr != @"+setOwn+" return",
		"meta priority set "+atPort+" map @"+mapHostPorts+" goto choose",
		"$ip daddr != @"+setPorted+" return",
		"meta priority set "+atPort+" map @"+mapPortsOutside+" goto choose",
		"meta priority set "+atPort+" map @"+mapPorts+" goto choose")
	chain("choose",
		// A packet in the middle of a connection that nobody knows is no beginning of one.
		"tcp flags & (fin | syn | rst | ack) != syn drop",
		"meta priority vmap @"+mapLists)
	chain("refuse",
		"$ports $ip daddr @"+setPorted+" "+atPort+" vmap @"+mapRefusedPorts,
		"$ports "+front+" vmap @"+mapRefused)

	list := "meta priority"
	slot := list + " . numgen random mod 65536"
	backend := "$ip daddr . th dport"
	for name, set := range map[string]Set{
		mapServices: {Key: front, Value: list}, mapServicesOutside: {Key: front, Value: list},
		mapPorts: {Key: atPort, Value: list}, mapPortsOutside: {Key: atPort, Value: list}, mapHostPorts: {Key: atPort, Value: list},
		setPortsLocal: {Key: atPort}, mapLists: {Key: list, Value: "verdict"},
		mapBackends: {Key: slot, Value: backend}, mapSlots: {Key: slot, Value: "meta mark"}, mapLive: {Key: list + " . meta mark", Value: backend},
		mapAffinity:   {Key: list + " . $ip saddr", Value: "meta mark", Learned: true, Size: affinitySize},
		setRestricted: {Key: front}, setRanges: {Key: front + " . $ip saddr", Interval: true},
		mapRefused: {Key: front, Value: "verdict"}, mapRefusedPorts: {Key: atPort, Value: "verdict"},
	} {
		f.set(t, name, set)
	}
}

func pickName(backends int, affinity uint32) string {
	if affinity > 0 {
		return fmt.Sprintf("pick-%d-for-%d", backends, affinity)
	}
	return fmt.Sprintf("pick-%d", backends)
}

// chains are those that a port's lists choose by, with their rules.
func (v *services) chains(p *port) map[string][]string {
	out := map[string][]string{}
	if p.number == 0 || len(p.faces) == 0 {
		return out
	}
	for _, n := range []int{len(p.cluster), len(p.local)} {
		if n > 0 {
			out[pickName(n, p.affinity())] = v.f.pickRules(n, p.affinity())
		}
	}
	return out
}

// pickRules choose one of n backends of the list whose number is the packet's priority. With affinity the backend that
// the client had last is taken again while it is live; the packet's mark holds its number meanwhile.
func (f family) pickRules(n int, affinity uint32) []string {
	const tr = "meta l4proto { tcp, udp, sctp } dnat $ip to "
	rules := []string{tr + fmt.Sprintf("meta priority . numgen random mod %d map @%s", n, mapBackends)}
	if affinity > 0 {
		client := "meta priority . $ip saddr"
		remember := fmt.Sprintf("update @%s { %s timeout %ds : meta mark }", mapAffinity, client, affinity)
		live := tr + "meta priority . meta mark map @" + mapLive
		rules = []string{
			"meta mark set " + client + " map @" + mapAffinity + " " + remember + " " + live,
			fmt.Sprintf("delete @%s { %s : meta mark }", mapAffinity, client),
			fmt.Sprintf("meta mark set meta priority . numgen random mod %d map @%s", n, mapSlots),
			remember + " " + live,
		}
	}
	for i, r := range rules {
		rules[i] = strings.ReplaceAll(r, "$ip", f.words().ip)
	}
	return rules
}

// serviceSets are those whose elements services follows, or packets add.
var serviceSets = map[string]bool{
	mapServices: true, mapServicesOutside: true, mapPorts: true, mapPortsOutside: true, mapHostPorts: true, setPortsLocal: true,
	mapLists: true, mapBackends: true, mapSlots: true, mapLive: true, mapAffinity: true, setRestricted: true, setRanges: true,
	mapRefused: true, mapRefusedPorts: true,
}
