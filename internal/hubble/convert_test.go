// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/hubble/api/flow"
)

var (
	webAddr, pgAddr  = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.1.2")
	ownAddr, farAddr = netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2")
	outside          = netip.MustParseAddr("2001:db8::9")
	began            = time.Now().UTC().Truncate(time.Second).Add(-time.Minute) // namespaces are those of the last hour

	web = flows.Peer{Address: webAddr, Port: 40000, Namespace: "shop", Pod: "web-5d8-abcde", Workload: "Deployment web", Labels: map[string]string{"app": "web", "pod-template-hash": "5d8"}, Node: "n1"}
	pg  = flows.Peer{Address: pgAddr, Port: 5432, Namespace: "db", Pod: "pg-0", Workload: "StatefulSet pg", Labels: map[string]string{"app.kubernetes.io/name": "pg"}, Node: "n1"}
)

// allowedFlow is web to pg by a Service, allowed at both ends.
func allowedFlow() *flows.Flow {
	rule := &events.Rule{Kind: "NetworkPolicy", Name: "db/clients", Tier: "default", Detail: "ingress[0]"}
	return &flows.Flow{
		Start: began, End: began.Add(time.Second), Node: "n1", Verdict: flows.Allowed, Protocol: "tcp", Source: web, Destination: pg, Service: "db/pg port pg",
		Asked: "10.96.0.9:5432", Path: "local", Return: "local", TCPFlags: "SYN ACK FIN", Ended: "closed", Rule: rule,
		Egress:  &events.End{Rule: &events.Rule{Kind: "GlobalNetworkPolicy.projectcalico.org", Name: "egress", Tier: "platform", Detail: "egress[2]"}, Domain: "*.example.com", Name: "a.example.com"},
		Ingress: &events.End{Rule: rule, Staged: &events.Staged{Verdict: "denied", Rule: &events.Rule{Kind: "StagedNetworkPolicy.projectcalico.org", Name: "db/next"}}},
		Sent:    flows.Counters{Packets: 4, Bytes: 340}, Received: flows.Counters{Packets: 2, Bytes: 2000},
	}
}

// deniedFlow is somebody outside to pg, which no policy allows.
func deniedFlow() *flows.Flow {
	rule := &events.Rule{Kind: "default-deny", Name: "db/clients,db/admins", Detail: "ingress"}
	from := flows.Peer{Address: outside}
	return &flows.Flow{Start: began, End: began.Add(2 * time.Second), Node: "n1", Verdict: flows.Denied, Reason: "POLICY_INGRESS", Protocol: "udp", Source: from, Destination: pg,
		Ingress: &events.End{Rule: rule}, Rule: rule, Sent: flows.Counters{Packets: 3}}
}

func newTestConverter() converter {
	return converter{node: "n1", nodes: map[netip.Addr]string{ownAddr: "n1", farAddr: "n2"}}
}

func namesOf(policies []*flow.Policy) (out []string) {
	for _, p := range policies {
		out = append(out, p.GetKind()+" "+p.GetNamespace()+"/"+p.GetName())
	}
	return out
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	r := allowedFlow()
	f := newTestConverter().flowOf(r)
	if err := extend(f, r); err != nil {
		t.Fatal(err)
	}
	tcp := f.GetL4().GetTCP()
	if f.GetVerdict() != flow.Verdict_FORWARDED || !f.GetTime().AsTime().Equal(r.End) || f.GetNodeName() != "n1" || f.GetIP().GetSource() != "10.0.0.1" || f.GetIP().GetDestination() != "10.0.1.2" ||
		f.GetIP().GetIpVersion() != flow.IPVersion_IPv4 || tcp.GetSourcePort() != 40000 || tcp.GetDestinationPort() != 5432 || !tcp.GetFlags().GetSYN() || !tcp.GetFlags().GetFIN() || tcp.GetFlags().GetRST() ||
		f.GetTrafficDirection() != flow.TrafficDirection_INGRESS || f.GetIsReply() == nil || f.GetIsReply().GetValue() || f.GetType() != flow.FlowType_L3_L4 ||
		f.GetEventType().GetType() != 4 || f.GetEventType().GetSubType() != 0 || f.GetTraceObservationPoint() != flow.TraceObservationPoint_TO_ENDPOINT || f.GetDropReasonDesc() != 0 {
		t.Errorf("%v", f)
	}
	if got, want := f.GetSource().GetLabels(), []string{"k8s:app=web", "k8s:io.kubernetes.pod.namespace=shop", "k8s:pod-template-hash=5d8"}; !slices.Equal(got, want) {
		t.Errorf("labels: %q", got)
	}
	if s := f.GetSource(); s.GetNamespace() != "shop" || s.GetPodName() != "web-5d8-abcde" || s.GetIdentity() != 0 || s.GetWorkloads()[0].GetKind() != "Deployment" || s.GetWorkloads()[0].GetName() != "web" {
		t.Errorf("source: %v", s)
	}
	if s := f.GetDestinationService(); s.GetNamespace() != "db" || s.GetName() != "pg" {
		t.Errorf("Service: %v", s)
	}
	if got, want := namesOf(f.GetIngressAllowedBy()), []string{"NetworkPolicy db/clients"}; !slices.Equal(got, want) {
		t.Errorf("ingress: %q", got)
	}
	if got, want := namesOf(f.GetEgressAllowedBy()), []string{"GlobalNetworkPolicy.projectcalico.org /egress"}; !slices.Equal(got, want) {
		t.Errorf("egress: %q", got)
	}
	if got := f.GetDestinationNames(); !slices.Equal(got, []string{"a.example.com"}) {
		t.Errorf("names: %q", got)
	}
	if len(f.GetIngressDeniedBy())+len(f.GetEgressDeniedBy()) > 0 {
		t.Errorf("denied by: %v", f)
	}
	var fields structpb.Struct
	if err := f.GetExtensions().UnmarshalTo(&fields); err != nil {
		t.Fatal(err)
	}
	text, err := fields.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var got Decision
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Rule == nil || *got.Rule != *r.Rule || got.Sent != r.Sent || got.Received != r.Received || got.Ingress.Staged.Verdict != "denied" || !got.Start.Equal(began) || got.Ended != "closed" {
		t.Errorf("extensions: %s", text)
	}
}

func TestDenied(t *testing.T) {
	t.Parallel()
	f := newTestConverter().flowOf(deniedFlow())
	if f.GetVerdict() != flow.Verdict_DROPPED || f.GetDropReasonDesc() != flow.DropReason_POLICY_DENIED || f.GetEventType().GetType() != 1 || f.GetEventType().GetSubType() != 133 ||
		f.GetTrafficDirection() != flow.TrafficDirection_INGRESS || f.GetL4().GetUDP().GetDestinationPort() != 5432 || f.GetIP().GetIpVersion() != flow.IPVersion_IPv6 {
		t.Errorf("%v", f)
	}
	if got, want := namesOf(f.GetIngressDeniedBy()), []string{"default-deny db/clients", "default-deny db/admins"}; !slices.Equal(got, want) {
		t.Errorf("denied by %q", got)
	}
	if s := f.GetSource(); s.GetIdentity() != identityWorld || !slices.Equal(s.GetLabels(), []string{"reserved:world"}) {
		t.Errorf("source: %v", s)
	}
	if f.GetDestinationService() != nil || len(f.GetIngressAllowedBy()) > 0 {
		t.Errorf("%v", f)
	}
}

// Where each kind of decision is said, and the reasons and ends that are no pods.
func TestConversions(t *testing.T) {
	t.Parallel()
	rule := func(kind, name string) *events.Rule { return &events.Rule{Kind: kind, Name: name} }
	for _, c := range []struct {
		what string
		r    flows.Flow
		is   func(f *flow.Flow) bool
	}{
		{"denied by a rule at the source", flows.Flow{Verdict: flows.Denied, Reason: "POLICY_EGRESS", Rule: rule("NetworkPolicy.projectcalico.org", "shop/no"), Egress: &events.End{Rule: rule("NetworkPolicy.projectcalico.org", "shop/no")}},
			func(f *flow.Flow) bool {
				return f.GetDropReasonDesc() == flow.DropReason_POLICY_DENY && f.GetTrafficDirection() == flow.TrafficDirection_EGRESS && namesOf(f.GetEgressDeniedBy())[0] == "NetworkPolicy.projectcalico.org shop/no" && f.GetIngressDeniedBy() == nil
			}},
		{"denied at the destination, allowed at the source", flows.Flow{Verdict: flows.Denied, Reason: "POLICY_INGRESS", Rule: rule("NetworkPolicy", "db/in"), Egress: &events.End{Rule: rule("NetworkPolicy", "shop/out")}, Ingress: &events.End{Rule: rule("NetworkPolicy", "db/in")}},
			func(f *flow.Flow) bool {
				return namesOf(f.GetEgressAllowedBy())[0] == "NetworkPolicy shop/out" && namesOf(f.GetIngressDeniedBy())[0] == "NetworkPolicy db/in" && f.GetEgressDeniedBy() == nil
			}},
		{"denied by a host endpoint", flows.Flow{Verdict: flows.Denied, Reason: "HOST_INGRESS", Rule: rule("GlobalNetworkPolicy.projectcalico.org", "host")},
			func(f *flow.Flow) bool {
				return namesOf(f.GetIngressDeniedBy())[0] == "GlobalNetworkPolicy.projectcalico.org /host"
			}},
		{"dropped, allowed by policy", flows.Flow{Verdict: flows.Dropped, Reason: "NO_BACKEND", Rule: rule("NetworkPolicy", "shop/out"), Egress: &events.End{Rule: rule("NetworkPolicy", "shop/out")}},
			func(f *flow.Flow) bool {
				return f.GetVerdict() == flow.Verdict_DROPPED && f.GetDropReasonDesc() == flow.DropReason_SERVICE_BACKEND_NOT_FOUND && len(f.GetEgressAllowedBy()) == 1 && f.GetEgressDeniedBy() == nil
			}},
		{"a reason that Hubble has none for", flows.Flow{Verdict: flows.Dropped, Reason: "INTERNAL"}, func(f *flow.Flow) bool { return f.GetDropReasonDesc() == flow.DropReason_DROP_REASON_UNKNOWN }},
		{"allowed by default", flows.Flow{Verdict: flows.Allowed, Ingress: &events.End{Rule: rule("default-allow", "profile")}}, func(f *flow.Flow) bool { return f.GetIngressAllowedBy() == nil }},
		{"from this node to another", flows.Flow{Verdict: flows.Allowed, Source: flows.Peer{Address: ownAddr}, Destination: flows.Peer{Address: farAddr}, Path: "vxlan"}, func(f *flow.Flow) bool {
			return f.GetSource().GetLabels()[0] == "reserved:host" && f.GetDestination().GetLabels()[0] == "reserved:remote-node" && f.GetEventType().GetSubType() == 4 && f.GetTrafficDirection() == 0
		}},
		{"a message of ICMP", flows.Flow{Verdict: flows.Allowed, Protocol: "icmp", ICMP: "8/0"}, func(f *flow.Flow) bool {
			return f.GetL4().GetICMPv4().GetType() == 8 && f.GetL4().GetICMPv4().GetCode() == 0
		}},
		{"a message of ICMPv6", flows.Flow{Verdict: flows.Allowed, Protocol: "icmpv6", ICMP: "128/1"}, func(f *flow.Flow) bool {
			return f.GetL4().GetICMPv6().GetType() == 128 && f.GetL4().GetICMPv6().GetCode() == 1
		}},
		{"SCTP", flows.Flow{Verdict: flows.Allowed, Protocol: "sctp", Destination: flows.Peer{Port: 9}}, func(f *flow.Flow) bool { return f.GetL4().GetSCTP().GetDestinationPort() == 9 }},
		{"another protocol", flows.Flow{Verdict: flows.Allowed, Protocol: "proto47"}, func(f *flow.Flow) bool { return f.GetL4() == nil && strings.Contains(f.String(), "PROTO47") }},
		{"a Service without a name", flows.Flow{Verdict: flows.Allowed, Service: "10.96.0.9:80 tcp"}, func(f *flow.Flow) bool { return f.GetDestinationService() == nil }},
	} {
		if f := newTestConverter().flowOf(&c.r); !c.is(f) {
			t.Errorf("%s: %v", c.what, f)
		}
	}
}
