package scenarios_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// asked is what a packet asks of policy.
type asked struct {
	src, dst netip.Addr
	proto    model.Protocol
	nodestate.Ports
}

// allows is step 3's judgement of docs/datapath.md, of both ends.
func allows(s *nodestate.State, p asked) bool {
	a, b := s.Addrs[p.src], s.Addrs[p.dst]
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

// questions are about every pair of ends of which one is a pod here.
func questions() []asked {
	ends := slices.Concat(localPods, otherPods, outside, nodeAddrs)
	var out []asked
	for _, src := range ends {
		for _, dst := range ends {
			if src == dst || !slices.Contains(localPods, src) && !slices.Contains(localPods, dst) {
				continue
			}
			for _, proto := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP} {
				out = append(out, asked{src, dst, proto, nodestate.Ports{Src: 1000, Dst: 80}}, asked{src, dst, proto, nodestate.Ports{Src: 29, Dst: 8080}})
			}
			out = append(out, asked{src, dst, model.ProtocolICMP, nodestate.Ports{Dst: 8 << 8}})
		}
	}
	return out
}

// TestPolicyBetweenWrites looks at the maps after each write of a change of policy: what is allowed by then is allowed before
// the change or after it, and what is allowed before and after is allowed all the time.
func TestPolicyBetweenWrites(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("maps need root: run with sudo")
	}
	o, err := ebpf.LoadForTest(ebpf.TestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	all := questions()
	writes, changed, cut := 0, 0, 0
	for seed := uint64(1); seed <= 5; seed++ {
		r := newCrowd(seed)
		for range 3 {
			r.policy()
			r.tiered()
		}
		before := calc.Calc(r.c)
		if err := o.Apply(before); err != nil {
			t.Fatal(err)
		}
		for step := range 3 {
			r.editPolicy()
			after := calc.Calc(r.c)
			was, is := make([]bool, len(all)), make([]bool, len(all))
			for i, p := range all {
				was[i], is[i] = allows(before, p), allows(after, p)
			}
			var wrong error
			o.AfterEachWrite(func() {
				writes++
				now, err := o.Policy()
				if err != nil {
					wrong = err
				}
				for i, p := range all {
					if wrong != nil {
						return
					}
					switch ok := allows(now, p); {
					case ok && !was[i] && !is[i]:
						wrong = fmt.Errorf("%+v is allowed after write %d", p, writes)
					case !ok && was[i] && is[i]:
						cut++
					case was[i] != is[i]:
						changed++
					}
				}
			})
			err := o.Apply(after)
			o.AfterEachWrite(nil)
			if err != nil || wrong != nil {
				t.Fatalf("seed %d, change %d: %v %v", seed, step, err, wrong)
			}
			if d := missing(after, o); d != "" {
				t.Fatalf("seed %d, change %d: %s", seed, step, d)
			}
			before = after
		}
	}
	if changed == 0 || cut > 0 {
		t.Errorf("%d writes: verdicts that change were looked at %d times, ones that stay were cut %d times", writes, changed, cut)
	}
	t.Logf("%d writes, %d looks at verdicts that change", writes, changed)
}

// missing says how the maps differ from a state's policy.
func missing(want *nodestate.State, o *ebpf.Offline) string {
	got, err := o.Policy()
	switch {
	case err != nil:
		return err.Error()
	case !nodestate.EqualMaps(got.Policy, want.Policy):
		return fmt.Sprintf("%d verdicts, not %d", got.Policy.Len(), want.Policy.Len())
	case !maps.Equal(got.PeerCIDRs, want.PeerCIDRs):
		return fmt.Sprint("classes of prefixes: ", got.PeerCIDRs)
	}
	for range nodestate.Changes(got.Peers, want.Peers, func(a, b nodestate.Class) bool { return a == b }) {
		return "classes of addresses differ"
	}
	return ""
}

// editPolicy changes what policy is made of, several things at once.
func (r *crowd) editPolicy() {
	for range 1 + r.IntN(4) {
		switch r.IntN(6) {
		case 0, 1:
			r.tiered()
		case 2:
			r.policy()
		case 3:
			r.tiers()
		case 4:
			for range 3 {
				r.anyPod().Labels = r.labels()
			}
		case 5:
			if ids := slices.SortedFunc(maps.Keys(r.c.Policies), func(a, b model.PolicyID) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }); len(ids) > 0 {
				delete(r.c.Policies, one(r, ids...))
			}
		}
	}
}
