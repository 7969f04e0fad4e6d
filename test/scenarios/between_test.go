// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// asked is what a packet asks of policy.
type asked struct {
	src, dst netip.Addr
	proto    model.Protocol
	nodestate.Ports
	in, out int // interfaces, as host endpoints see it; 0 = begins or ends in the node
}

// allows is what docs/design/datapath.md says of policy: of both ends, and of host endpoints.
func allows(s *nodestate.State, p asked) bool { return podsAllow(s, p) && hostsAllow(s, p) }

func hostsAllow(s *nodestate.State, p asked) bool {
	asks := func(iso nodestate.Isolation, peer netip.Addr) bool {
		ok, _ := s.Verdict(iso, peer, p.proto, p.Ports)
		return ok
	}
	toHost, fromHost := s.Addrs[p.dst].Kind == nodestate.AddrHost, s.Addrs[p.src].Kind == nodestate.AddrHost
	if p.in == 0 && p.out == 0 && toHost {
		switch s.Settings.ToHost {
		case model.ToHostDrop:
			return false
		case model.ToHostReturn:
			return asks(s.HostEndpointAt(0, p.src).HostIngress, p.src)
		}
		return true
	}
	if h := s.HostEndpointAt(p.in, p.src); p.in != 0 {
		ok, alone := aloneAllows(s, h.UntrackedIngress, p.in, p.src, p)
		if !ok || alone && toHost {
			return ok
		}
		if !alone && !asks(h.PreDNAT, p.src) || toHost && !asks(h.HostIngress, p.src) || !toHost && !asks(h.ForwardIngress, p.src) {
			return false
		}
	}
	if h := s.HostEndpointAt(p.out, p.src); p.out != 0 {
		ok, alone := aloneAllows(s, h.UntrackedEgress, p.out, p.dst, p)
		if !ok || alone && fromHost {
			return ok
		}
		return fromHost && asks(h.HostEgress, p.dst) || !fromHost && asks(h.ForwardEgress, p.dst)
	}
	return true
}

// aloneAllows is what a host endpoint says of a packet by itself, at an uplink; alone: that is all
// that it says.
func aloneAllows(s *nodestate.State, iso nodestate.Isolation, at int, peer netip.Addr, p asked) (ok, alone bool) {
	if iso.Set == 0 || at != scenario.Uplink {
		return true, false
	}
	v := s.Decide(iso, peer, p.proto, p.Ports)
	return v.Allow, v.Allow && !v.Undecided
}

func podsAllow(s *nodestate.State, p asked) bool {
	a, b := s.Addrs[p.src], s.Addrs[p.dst]
	for _, end := range []netip.Addr{p.src, p.dst} {
		if slices.Contains(localPods, end) && s.Addrs[end].Kind != nodestate.AddrEndpoint {
			return false // nothing comes from a pod that is not there, nor reaches it
		}
	}
	if a.Kind == nodestate.AddrEndpoint {
		if ok, _ := s.Verdict(a.Egress, p.dst, p.proto, p.Ports); !ok {
			return false
		}
	}
	if b.Kind == nodestate.AddrEndpoint && a.Kind != nodestate.AddrHost {
		ok, _ := s.Verdict(b.Ingress, p.src, p.proto, p.Ports)
		return ok
	}
	return true
}

// questions are about every pair of ends of which one is here, and of some that the node hands on.
func questions() []asked {
	interfaceOf := func(a netip.Addr) int {
		switch {
		case a == ownAddr || slices.Contains(localPods, a):
			return 0
		case slices.Contains(otherPods, a):
			return scenario.TunnelDev
		}
		return scenario.Uplink
	}
	here := func(a netip.Addr) bool { return interfaceOf(a) == 0 }
	ends := slices.Concat(localPods, otherPods, outside, nodeAddrs)
	var out []asked
	for _, src := range ends {
		for _, dst := range ends {
			if src == dst || !here(src) && !here(dst) && src != outside[0] {
				continue
			}
			in, leaves := interfaceOf(src), interfaceOf(dst)
			for _, proto := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP} {
				out = append(out, asked{src, dst, proto, nodestate.Ports{Src: 1000, Dst: 80}, in, leaves}, asked{src, dst, proto, nodestate.Ports{Src: 29, Dst: 8080}, in, leaves})
			}
			out = append(out, asked{src, dst, model.ProtocolICMP, nodestate.Ports{Dst: 8 << 8}, in, leaves})
		}
	}
	return out
}

// between evaluates the questions after each write of the change from one state to another.
type between struct {
	o                    *offline.Node
	all                  []asked
	writes, changed, cut int
	wrong                error
}

// watch looks at each write until unwatch, of which fail may fail some.
func (b *between) watch(before, after *nodestate.State, fail func() error) {
	was, is := make([]bool, len(b.all)), make([]bool, len(b.all))
	for i, p := range b.all {
		was[i], is[i] = allows(before, p), allows(after, p)
	}
	b.wrong = nil
	b.o.AfterEachWrite(func() {
		b.writes++
		now, err := b.o.Policy()
		if err != nil {
			b.wrong = err
		}
		for i, p := range b.all {
			if b.wrong != nil {
				return
			}
			switch ok := allows(now, p); {
			case ok && !was[i] && !is[i]:
				b.wrong = fmt.Errorf("%+v is allowed after write %d", p, b.writes)
			case !ok && was[i] && is[i]:
				b.cut++
			case was[i] != is[i]:
				b.changed++
			}
		}
	}, fail)
}

func (b *between) unwatch() { b.o.AfterEachWrite(nil, nil) }

func loadBetween(t *testing.T, sizes map[string]uint32) *between {
	skipInShort(t)
	nettest.NeedRoot(t, "making maps")
	// All of the maps is read after each write, and to read one takes as long as it is large: there
	// is room for some times of what these clusters need, which the bridges must not come to feel.
	small := map[string]uint32{"weir_policy": 16384, "weir_peers": 1024, "weir_addrs": 1024}
	maps.Copy(small, sizes)
	o, err := offline.Load(offline.Options{Programs: []string{}, Sizes: small})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return &between{o: o, all: questions()}
}

// isolatedCrowd is one with policies.
func isolatedCrowd(seed uint64) *crowd {
	r := newCrowd(seed)
	for range 3 {
		r.policy()
		r.tiered()
	}
	r.fewHosts()
	return r
}

// fewHosts makes host endpoints with few failsafe ports: the maps are read after each write.
func (r *crowd) fewHosts() {
	r.hostEndpoints()
	delete(r.c.HostEndpoints, "h2")
	r.c.Settings.FailsafeIn = []model.Failsafe{{Protocol: model.ProtocolTCP, Port: 22}}
	r.c.Settings.FailsafeOut = []model.Failsafe{{Protocol: model.ProtocolUDP, Port: 53}}
}

// TestPolicyBetweenWrites looks at the maps after each write of a change of policy: what is allowed
// by then is allowed before the change or after it, and what is allowed before and after is allowed
// all the time.
func TestPolicyBetweenWrites(t *testing.T) {
	b := loadBetween(t, nil)
	for seed := uint64(1); seed <= 4; seed++ {
		r := isolatedCrowd(seed)
		before := calc.Calc(r.c)
		if err := b.o.Apply(before); err != nil {
			t.Fatal(err)
		}
		for step := range 3 {
			r.editPolicy()
			after := calc.Calc(r.c)
			b.watch(before, after, nil)
			err := b.o.Apply(after)
			b.unwatch()
			if err != nil || b.wrong != nil {
				t.Fatalf("seed %d, change %d: %v %v", seed, step, err, b.wrong)
			}
			if d := missing(after, b.o); d != "" {
				t.Fatalf("seed %d, change %d: %s", seed, step, d)
			}
			before = after
		}
	}
	if b.changed == 0 || b.cut > 0 {
		t.Errorf("%d writes: verdicts that change were looked at %d times, ones that stay were cut %d times", b.writes, b.changed, b.cut)
	}
	if n := b.o.ChangedInPlace(); n.Plain == 0 || n.Whole == 0 || n.Sources == 0 {
		t.Errorf("not every way in which a set becomes something else was tried: %+v", n)
	}
	t.Logf("%d writes, %d looks at verdicts that change, turned %+v", b.writes, b.changed, b.o.ChangedInPlace())
}

// TestPolicyBetweenFailures is the same with writes that fail: one, or all from one on, so that the
// change is held; it is not made twice, and it is crossed once writes succeed again.
func TestPolicyBetweenFailures(t *testing.T) {
	b := loadBetween(t, nil)
	failed, held := 0, 0
	for seed := uint64(11); seed <= 12; seed++ {
		r := isolatedCrowd(seed)
		before := calc.Calc(r.c)
		if err := b.o.Apply(before); err != nil {
			t.Fatal(err)
		}
		for step := range 3 {
			r.editPolicy()
			after := calc.Calc(r.c)
			first, ever := r.IntN(80), r.chance(50)
			n, broken := 0, false
			b.watch(before, after, func() error {
				if n++; n == first || n > first && ever {
					broken = true
					failed++
					return errors.New("a write that fails for a test")
				}
				return nil
			})
			temps := -1
			for range 3 {
				failing := b.o.Apply(after)
				if b.wrong != nil || failing != nil && !broken {
					t.Fatalf("seed %d, change %d, write %d fails (and all after it: %t): %v %v", seed, step, first, ever, b.wrong, failing)
				}
				if temps >= 0 && b.o.Temporary() > temps {
					t.Fatalf("seed %d, change %d: %d temporary verdicts, and %d when tried again", seed, step, temps, b.o.Temporary())
				}
				if temps = b.o.Temporary(); temps > 0 {
					held++
				}
				first = 0
			}
			ever = false
			for range 3 {
				if err := b.o.Apply(after); err != nil || b.wrong != nil {
					t.Fatalf("seed %d, change %d, healed: %v %v", seed, step, err, b.wrong)
				}
			}
			b.unwatch()
			if d := missing(after, b.o); d != "" || b.o.Temporary() > 0 {
				t.Fatalf("seed %d, change %d: %s, %d temporary verdicts", seed, step, d, b.o.Temporary())
			}
			before = after
		}
	}
	if failed == 0 || held == 0 {
		t.Errorf("%d writes failed, %d changes were held", failed, held)
	}
	t.Logf("%d writes, %d failed, %d times a change was held", b.writes, failed, held)
}

// missing says how the maps differ from a state's policy.
func missing(want *nodestate.State, o *offline.Node) string {
	got, err := o.Policy()
	switch {
	case err != nil:
		return err.Error()
	case !nodestate.EqualMaps(got.Policy, want.Policy):
		return fmt.Sprintf("%d verdicts, not %d", got.Policy.Len(), want.Policy.Len())
	case !sameHosts(got.HostEndpoints, want.HostEndpoints):
		return fmt.Sprint("host endpoints: ", got.HostEndpoints)
	case !maps.Equal(got.PeerCIDRs, want.PeerCIDRs):
		return fmt.Sprint("classes of prefixes: ", got.PeerCIDRs)
	}
	for range nodestate.Changes(got.Peers, want.Peers, func(a, b nodestate.Class) bool { return a == b }) {
		return "classes of addresses differ"
	}
	return ""
}

// sameHosts compares what is evaluated of IPv4; the maps have no names.
func sameHosts(got, want map[nodestate.HostInterface]nodestate.HostEndpoint) bool {
	return maps.EqualFunc(got, want, func(a, b nodestate.HostEndpoint) bool { a.Name, b.Name = "", ""; return a == b })
}

// editRules changes rules of a policy that is there: sets keep their numbers then.
func (r *crowd) editRules() {
	ids := slices.SortedFunc(maps.Keys(r.c.Policies), func(a, b model.PolicyID) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	if len(ids) == 0 {
		return
	}
	p := *r.c.Policies[one(r, ids...)]
	rule := func() model.Rule {
		if p.Kind == model.KindNetworkPolicy {
			return r.rule()
		}
		return r.tieredRule()
	}
	for _, rules := range []*[]model.Rule{&p.Ingress, &p.Egress} {
		*rules = slices.Clone(*rules)
		i := r.IntN(len(*rules) + 1)
		switch n := r.IntN(5); {
		case n == 0 || i == len(*rules):
			*rules = slices.Insert(*rules, i, rule())
		case n == 1:
			*rules = slices.Delete(*rules, i, i+1)
		case n < 4:
			(*rules)[i] = rule()
		}
	}
	r.c.Policies[p.ID()] = &p
}

// editPolicy changes what policy is made of, several things at once.
func (r *crowd) editPolicy() {
	for range 1 + r.IntN(4) {
		switch r.IntN(11) {
		case 8, 9, 10:
			r.editRules()
		case 7: // not what pods may send to the node: a setting, which changes by itself
			to := r.c.Settings.ToHost
			r.fewHosts()
			r.c.Settings.ToHost = to
		case 0, 1:
			r.tiered()
		case 2:
			r.policy()
		case 3:
			r.tiers()
		case 4:
			for range 3 {
				if p := r.anyPod(); p != nil {
					p.Labels = r.labels()
				}
			}
		case 6: // a pod of the node goes, or comes
			i := r.IntN(len(localPods))
			if _, ok := r.c.Local.Endpoints[localPods[i]]; !ok {
				r.localPod(i)
				continue
			}
			delete(r.c.Local.Endpoints, localPods[i])
			r.c.Pods.Delete(model.Name{Namespace: "default", Name: fmt.Sprintf("l%d", i)})
		case 5:
			if ids := slices.SortedFunc(maps.Keys(r.c.Policies), func(a, b model.PolicyID) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }); len(ids) > 0 {
				delete(r.c.Policies, one(r, ids...))
			}
		}
	}
}
