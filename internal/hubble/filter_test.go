// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/hubble/api/flow"
)

func TestFilters(t *testing.T) {
	t.Parallel()
	allowed, denied := newTestConverter().flowOf(allowedFlow()), newTestConverter().flowOf(deniedFlow())
	for _, c := range []struct {
		what            string
		f               *flow.FlowFilter
		allowed, denied bool
	}{
		{"nothing is asked for", &flow.FlowFilter{}, true, true},
		{"a pod", &flow.FlowFilter{SourcePod: []string{"shop/web-5d8-abcde"}}, true, false},
		{"how a pod's name begins", &flow.FlowFilter{SourcePod: []string{"shop/we"}}, true, false},
		{"a namespace", &flow.FlowFilter{SourcePod: []string{"shop/"}}, true, false},
		{"another namespace", &flow.FlowFilter{SourcePod: []string{"db/"}}, false, false},
		{"a pod of any namespace", &flow.FlowFilter{DestinationPod: []string{"/pg"}}, true, true},
		{"a pod of namespace default", &flow.FlowFilter{DestinationPod: []string{"pg"}}, false, false},
		{"one of two", &flow.FlowFilter{DestinationPod: []string{"db/other", "db/pg"}}, true, true},
		{"both ends", &flow.FlowFilter{SourcePod: []string{"shop/"}, DestinationPod: []string{"db/"}}, true, false},
		{"a Service", &flow.FlowFilter{DestinationService: []string{"db/pg"}}, true, false},
		{"the client's Service, which nothing has", &flow.FlowFilter{SourceService: []string{"db/pg"}}, false, false},
		{"an address", &flow.FlowFilter{SourceIp: []string{"10.0.0.1"}}, true, false},
		{"a network", &flow.FlowFilter{SourceIp: []string{"192.0.2.0/24", "2001:db8::/32"}}, false, true},
		{"a network of destinations", &flow.FlowFilter{DestinationIp: []string{"10.0.1.0/24"}}, true, true},
		{"a label", &flow.FlowFilter{SourceLabel: []string{"app=web"}}, true, false},
		{"a label with its source", &flow.FlowFilter{SourceLabel: []string{"k8s:app in (web, api)"}}, true, false},
		{"a label with a domain", &flow.FlowFilter{DestinationLabel: []string{"any:app.kubernetes.io/name=pg"}}, true, true},
		{"a label that is not there", &flow.FlowFilter{SourceLabel: []string{"!app"}}, false, true},
		{"a namespace by its label", &flow.FlowFilter{SourceLabel: []string{"io.kubernetes.pod.namespace=shop"}}, true, false},
		{"outside", &flow.FlowFilter{SourceLabel: []string{"reserved:world"}}, false, true},
		{"outside by its identity", &flow.FlowFilter{SourceIdentity: []uint32{2}}, false, true},
		{"pods by their identity", &flow.FlowFilter{DestinationIdentity: []uint32{0}}, true, true},
		{"a workload", &flow.FlowFilter{SourceWorkload: []*flow.Workload{{Name: "web"}}}, true, false},
		{"a workload of another kind", &flow.FlowFilter{SourceWorkload: []*flow.Workload{{Name: "web", Kind: "DaemonSet"}}}, false, false},
		{"a kind of workload", &flow.FlowFilter{DestinationWorkload: []*flow.Workload{{Kind: "StatefulSet"}}}, true, true},
		{"a verdict", &flow.FlowFilter{Verdict: []flow.Verdict{flow.Verdict_DROPPED}}, false, true},
		{"a reason", &flow.FlowFilter{DropReasonDesc: []flow.DropReason{flow.DropReason_POLICY_DENIED}}, false, true},
		{"a direction", &flow.FlowFilter{TrafficDirection: []flow.TrafficDirection{flow.TrafficDirection_EGRESS}}, false, false},
		{"a protocol", &flow.FlowFilter{Protocol: []string{"TCP"}}, true, false},
		{"two protocols", &flow.FlowFilter{Protocol: []string{"tcp", "udp"}}, true, true},
		{"messages of ICMP", &flow.FlowFilter{Protocol: []string{"icmp"}}, false, false},
		{"a port", &flow.FlowFilter{DestinationPort: []string{"5432"}}, true, true},
		{"a port of a client", &flow.FlowFilter{SourcePort: []string{"40000"}}, true, false},
		{"a range of ports", &flow.FlowFilter{SourcePort: []string{"30000-40000"}}, true, false},
		{"flags", &flow.FlowFilter{TcpFlags: []*flow.TCPFlags{{SYN: true, FIN: true}}}, true, false},
		{"flags that it has not", &flow.FlowFilter{TcpFlags: []*flow.TCPFlags{{RST: true}}}, false, false},
		{"flags that are not recorded", &flow.FlowFilter{TcpFlags: []*flow.TCPFlags{{PSH: true}}}, false, false},
		{"a node", &flow.FlowFilter{NodeName: []string{"n1"}}, true, true},
		{"nodes of a cluster", &flow.FlowFilter{NodeName: []string{"default/n*"}}, true, true},
		{"another cluster", &flow.FlowFilter{NodeName: []string{"other/"}}, false, false},
		{"another node", &flow.FlowFilter{NodeName: []string{"n"}}, false, false},
		{"a version of IP", &flow.FlowFilter{IpVersion: []flow.IPVersion{flow.IPVersion_IPv6}}, false, true},
		{"answers", &flow.FlowFilter{Reply: []bool{true}}, false, false},
		{"no answers", &flow.FlowFilter{Reply: []bool{false}}, true, true},
		{"a type of event", &flow.FlowFilter{EventType: []*flow.EventTypeFilter{{Type: 4}}}, true, false},
		{"a subtype", &flow.FlowFilter{EventType: []*flow.EventTypeFilter{{Type: 4, MatchSubType: true, SubType: 3}}}, false, false},
	} {
		white, err := newFilter([]*flow.FlowFilter{c.f}, nil)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if got, got2 := white.wants(allowed), white.wants(denied); got != c.allowed || got2 != c.denied {
			t.Errorf("%s: %t, %t; want %t, %t", c.what, got, got2, c.allowed, c.denied)
		}
		black, err := newFilter(nil, []*flow.FlowFilter{c.f})
		if err != nil || black.wants(allowed) == c.allowed || black.wants(denied) == c.denied {
			t.Errorf("%s, not: %t, %t, %v", c.what, black.wants(allowed), black.wants(denied), err)
		}
	}
	both, err := newFilter([]*flow.FlowFilter{{Protocol: []string{"sctp"}}, {DestinationPod: []string{"db/"}}}, []*flow.FlowFilter{{Verdict: []flow.Verdict{flow.Verdict_DROPPED}}})
	if err != nil || !both.wants(allowed) || both.wants(denied) {
		t.Errorf("one of two, and not a third: %t, %t, %v", both.wants(allowed), both.wants(denied), err)
	}
}

// What cannot be answered is refused, and says why: an answer to less than was asked is a wrong
// one.
func TestFiltersThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		f    *flow.FlowFilter
		says string
	}{
		{&flow.FlowFilter{HttpMethod: []string{"GET"}}, "http_method"},
		{&flow.FlowFilter{DestinationFqdn: []string{"example.com"}}, "destination_fqdn"},
		{&flow.FlowFilter{Uuid: []string{"x"}}, "uuid"},
		{&flow.FlowFilter{Experimental: &flow.FlowFilter_Experimental{CelExpression: []string{"true"}}}, "experimental"},
		{&flow.FlowFilter{SourceIp: []string{"10.0.0.300"}}, "10.0.0.300"},
		{&flow.FlowFilter{SourceLabel: []string{"a in ("}}, "source_label"},
		{&flow.FlowFilter{SourcePort: []string{"70000"}}, "70000"},
		{&flow.FlowFilter{SourcePort: []string{"9-8"}}, "9-8"},
		{&flow.FlowFilter{Protocol: []string{"http"}}, "addresses and ports"},
		{&flow.FlowFilter{Protocol: []string{"gre"}}, "gre"},
		{&flow.FlowFilter{NodeName: []string{"a/b/c"}}, "a/b/c"},
		{&flow.FlowFilter{NodeName: []string{""}}, "node_name"},
		{&flow.FlowFilter{SourcePod: []string{""}}, "source_pod"},
		{&flow.FlowFilter{SourceIdentity: make([]uint32, mostValues+1)}, "1024"},
	} {
		if _, err := newFilter([]*flow.FlowFilter{c.f}, nil); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.f, err)
		}
		if _, err := newFilter(nil, []*flow.FlowFilter{c.f}); err == nil {
			t.Errorf("not %v is taken", c.f)
		}
	}
	if _, err := newFilter(make([]*flow.FlowFilter, mostFilters+1), nil); err == nil {
		t.Error("any number of filters is taken")
	}
}
