// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/watch"
)

// A pod's start changes numbers only: nothing is written to the API for it.
func TestNumbersWaitForTheHeartbeat(t *testing.T) {
	now, later := metav1.Now(), metav1.NewTime(time.Now().Add(time.Minute))
	a := &weirv1.NodeStatusStatus{NodeAddress: "172.31.1.8", LastHeartbeat: &now, Endpoints: 1, Services: 2,
		Conditions: []weirv1.Condition{{Type: weirv1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: now}}}
	b := a.DeepCopy()
	b.Endpoints, b.Services, b.LastHeartbeat, b.Drops = 50, 3, &later, []weirv1.Drop{{Reason: "SPOOFED"}}
	b.FlowRecords = &weirv1.FlowRecordsStatus{Lost: []weirv1.LostFlowRecords{{Why: "ring", Records: 1, LastTime: later}}}
	b.Conditions[0].LastTransitionTime = later
	if !sameForOthers(a, b) {
		t.Error("numbers are written at once")
	}
	b.Conditions[0].Status = metav1.ConditionFalse
	if sameForOthers(a, b) {
		t.Error("a condition waits for the heartbeat")
	}
	c := a.DeepCopy()
	c.NodeAddress = "172.31.1.9"
	if sameForOthers(a, c) || sameForOthers(nil, a) {
		t.Error("an address waits for the heartbeat")
	}
}

func TestDropsAreNamedByRule(t *testing.T) {
	s := nodestate.New()
	s.Rules.Set(7, nodestate.Rule{Kind: "NetworkPolicy", Name: "shop/web", Detail: "ingress"})
	got := topDrops([]dataplane.Drop{{Reason: 3, Packets: 1}, {Reason: 1, Rule: 7, Packets: 9}, {Reason: 2, Rule: 8, Packets: 4}}, s)
	if len(got) != 2 || got[0].Rule != "NetworkPolicy shop/web ingress" || got[0].Reason != "POLICY_INGRESS" || got[0].Packets != 9 {
		t.Errorf("%+v", got)
	}
	if got[1].Rule != "" || got[1].Packets != 1 {
		t.Errorf("%+v", got)
	}
}

// What every pod sends by itself on a node without IPv6 is no news.
func TestDropsThatAreNoNews(t *testing.T) {
	got := topDrops([]dataplane.Drop{{Reason: uint32(reason.FamilyLink), Packets: 1 << 30}, {Reason: uint32(reason.Family), Packets: 1}}, nodestate.New())
	if len(got) != 1 || got[0].Reason != "FAMILY" {
		t.Errorf("%+v", got)
	}
}

// Rules come and go with policies: whoever makes many that deny and removes them again must not
// hide what is dropped now.
func TestHostileDropsOfRulesThatAreGone(t *testing.T) {
	hostile.Record(t, "counts of removed rules hide the drops that happen now", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	s := nodestate.New()
	s.Rules.Set(7, nodestate.Rule{Kind: "NetworkPolicy", Name: "shop/web", Detail: "ingress"})
	drops := []dataplane.Drop{{Reason: 1, Rule: 7, Packets: 3}}
	for id := range nodestate.RuleID(1000) {
		drops = append(drops, dataplane.Drop{Reason: 1, Rule: 1000 + id, Packets: 1 << 20})
	}
	got := topDrops(drops, s)
	if len(got) != 1 || got[0].Rule != "NetworkPolicy shop/web ingress" || got[0].Packets != 3 {
		t.Errorf("%+v", got)
	}
}

// While another data plane is about to carry the packets, the status says so, from the first moment
// on.
func TestHostileChangeIsReported(t *testing.T) {
	hostile.Record(t, "a node that changes its data plane is reported as healthy with the one before", hostile.Operator, hostile.ControlPlane, hostile.Both)
	for _, c := range []struct {
		nftables bool
		want     string
	}{{true, "from eBPF to nftables"}, {false, "from nftables to eBPF"}} {
		a := &Agent{}
		a.noteChanging(c.nftables)
		got := dataplaneCondition(a.dataplane())
		if got.Status != metav1.ConditionFalse || got.Reason != weirv1.ReasonChanging || !strings.Contains(got.Message, c.want) {
			t.Errorf("%+v", got)
		}
	}
}

func TestLinkAddress(t *testing.T) {
	for text, want := range map[string]string{"02:00:5e:00:53:01": "02:00:5e:00:53:01", "00:00:00:00:00:00": "", "03:00:00:00:00:01": ""} {
		mac, err := net.ParseMAC(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := linkAddress(mac); got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}

func TestAnnouncedAddressesAreListed(t *testing.T) {
	if got := announced(nil); got != nil {
		t.Error(got)
	}
	s := nodestate.New()
	for i := range 120 {
		s.Announced[netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})] = true
	}
	got := announced(s)
	if len(got) != maxAnnounced || got[0] != "192.0.2.0" || got[99] != "192.0.2.99" {
		t.Errorf("%d: %v", len(got), got)
	}
}

// TestSourceOf holds how old what an agent has is: what it follows by itself is as old as the loss
// of the API server, what a fan-out sends as the fan-out says.
func TestSourceOf(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	lost, said := now.Add(-time.Minute), now.Add(-2*time.Minute)
	for _, c := range []struct {
		fed  bool
		st   watch.Status
		want time.Time
	}{
		{false, watch.Status{Connected: true, Since: lost}, now},
		{false, watch.Status{Since: lost}, lost},
		{true, watch.Status{Connected: true, Since: lost, AsOf: said, FanOut: "192.0.2.1:5473"}, said},
		{true, watch.Status{Since: lost, AsOf: said}, said},
		{true, watch.Status{Since: lost}, time.Time{}},
	} {
		got := sourceOf("n1", c.fed, c.st, now)
		if !got.AsOf.Equal(c.want) || got.Fed != c.fed || got.FanOut != c.st.FanOut || got.Connected != c.st.Connected || !got.Since.Equal(c.st.Since) {
			t.Errorf("fed %v, %+v: %+v, want as of %s", c.fed, c.st, got, c.want)
		}
	}
}
