package calc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// A set of policies that takes more of a node than it may is refused: its pods are cut off in that direction, by a rule
// that names the policies; the others are as if it were not there.
func TestPolicyBeyondTheBoundIsRefused(t *testing.T) {
	t.Parallel()
	c := policyFixture()
	big := &model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "big"}, Tier: model.TierDefault, AppliesIngress: true,
		Subject: model.Selector{Expression: "app == 'free'"}}
	var ports []model.PortRange
	for i := range 2000 {
		ports = append(ports, tcp(uint16(2*i+1), uint16(2*i+1)))
	}
	for i := range 40 {
		a := fmt.Sprint("peer", i)
		run(c, "other", a, "far", fmt.Sprintf("10.244.2.%d", 10+i), app(a))
		big.Ingress = append(big.Ingress, model.Rule{Action: model.Allow, Ports: ports, Other: &model.Entity{Selector: "app == '" + a + "'"}})
	}
	c.Policies[big.ID()] = big
	s := Calc(c)
	iso := s.Addrs[addr("10.244.1.3")].Ingress
	allow, rule := s.Verdict(iso, addr("10.244.2.10"), model.ProtocolTCP, nodestate.Ports{Dst: 1})
	if r := s.Rules.At(rule); allow || r.Kind != "policy-too-large" || r.Name != "big" {
		t.Errorf("allow=%t by %s", allow, r)
	}
	if len(s.Policy) > 1000 {
		t.Errorf("%d entries", len(s.Policy))
	}
	if allow, _ := s.Verdict(s.Addrs[addr("10.244.1.2")].Ingress, addr("172.31.1.162"), model.ProtocolTCP, nodestate.Ports{Dst: 80}); !allow {
		t.Error("another pod is cut off too")
	}
	big.Ingress = big.Ingress[:20]
	s = Calc(c)
	iso = s.Addrs[addr("10.244.1.3")].Ingress
	if allow, _ := s.Verdict(iso, addr("10.244.2.10"), model.ProtocolTCP, nodestate.Ports{Dst: 1}); !allow {
		t.Error("refused within the bound")
	}
	if strings.Contains(s.String(), "policy-too-large") {
		t.Error("a rule is left that decides nothing")
	}
}
