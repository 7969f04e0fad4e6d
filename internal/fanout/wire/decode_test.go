// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/model"
)

// TestMalformed holds that what no sender writes is refused, by the name of the field.
func TestMalformed(t *testing.T) {
	t.Parallel()
	n := []byte("n")
	pod := func(p *Pod) *Message { return &Message{Pods: []*PodGroup{{}, {Pods: []*Pod{{Name: n}, p}}}} }
	rule := func(r *Rule) *Message {
		return &Message{Policies: []*Policy{{Kind: 1, Tier: 1, Name: n, Subject: &Selector{}, Ingress: []*Rule{{}, r}}}}
	}
	for want, m := range map[string]*Message{
		"pods[1].pods[1].addrs[0]: 5 bytes are no address":                 pod(&Pod{Name: n, Addrs: [][]byte{make([]byte, 5)}}),
		"pods[1].pods[1].asked[1]: 17 bytes are no address":                pod(&Pod{Name: n, Asked: [][]byte{make([]byte, 4), make([]byte, 17)}}),
		"pods[1].pods[1].node: text 3 of 2":                                pod(&Pod{Name: n, Node: 3}),
		"pods[1].pods[1].node: text 4294967295 of 2":                       pod(&Pod{Name: n, Node: 1<<32 - 1}),
		"pods[1].pods[1].uid: 15 bytes are no UUID":                        pod(&Pod{Name: n, Uid: make([]byte, 15)}),
		"pods[1].pods[1].name: no name":                                    pod(&Pod{}),
		"pods[1].pods[1].name_shared: 2 bytes of a name of 1":              pod(&Pod{Name: n, NameShared: 2}),
		"pods[1].pods[1].name_shared: 4294967295 bytes of a name of 1":     pod(&Pod{Name: n, NameShared: 1<<32 - 1}),
		"pods[0].namespace: text 9 of 2":                                   {Pods: []*PodGroup{{Namespace: 9}}},
		"pods[0].labels: 3 texts are no pairs":                             {Pods: []*PodGroup{{Labels: &Labels{Pairs: []uint32{1, 2, 1}}}}},
		"pods[0].ports[0].port: 65536 is no port":                          {Pods: []*PodGroup{{Ports: []*PodPort{{Port: 65536}}}}},
		"pods[0].ports[0].protocol: 256 is no protocol":                    {Pods: []*PodGroup{{Ports: []*PodPort{{Protocol: 256}}}}},
		"pods[0].ports[0].host_ip: 1 bytes are no address":                 {Pods: []*PodGroup{{Ports: []*PodPort{{HostIp: n}}}}},
		"namespaces[0].name: no name":                                      {Namespaces: []*Namespace{{}}},
		"namespaces[0].labels: text 3 of 2":                                {Namespaces: []*Namespace{{Name: n, Labels: &Labels{Pairs: []uint32{1, 3}}}}},
		"nodes[0].link_address: 5 bytes are no link address":               {Nodes: []*Node{{Name: 1, LinkAddress: make([]byte, 5)}}},
		"nodes[0].subnets[0]: 4 bytes are no prefix":                       {Nodes: []*Node{{Name: 1, Subnets: [][]byte{make([]byte, 4)}}}},
		"nodes[0].subnets[0]: a prefix of 0.0.0.0 with 33 bits":            {Nodes: []*Node{{Name: 1, Subnets: [][]byte{{0, 0, 0, 0, 33}}}}},
		"nodes[0].since[1].addr: 1 bytes are no address":                   {Nodes: []*Node{{Name: 1, Since: []*AddrTime{{}, {Addr: n}}}}},
		"nodes[0].name: no name":                                           {Nodes: []*Node{{}}},
		"services[0].ports[0].node_port: 70000 is no port":                 {Services: []*Service{{Name: 1, Ports: []*ServicePort{{NodePort: 70000}}}}},
		"slices[0].endpoints[1].zones[1]: text 3 of 2":                     {Slices: []*EndpointSlice{{Name: n, Endpoints: []*Endpoint{{}, {Zones: []uint32{1, 3}}}}}},
		"slices[0].service.name: text 3 of 2":                              {Slices: []*EndpointSlice{{Name: n, Service: &Name{Name: 3}}}},
		"policies[0].ingress[1].peers[0].except[0]: 3 bytes are no prefix": rule(&Rule{Peers: []*Peer{{Except: [][]byte{make([]byte, 3)}}}}),
		"policies[0].ingress[1].peers[0].cidr: 2 bytes are no prefix":      rule(&Rule{Peers: []*Peer{{Cidr: make([]byte, 2)}}}),
		"policies[0].ingress[1].other.selector: text 3 of 2":               rule(&Rule{Other: &Entity{Selector: 3}}),
		"policies[0].ingress[1].not_ports[0].last: 65536 is no port":       rule(&Rule{NotPorts: []*PortRange{{Last: 65536}}}),
		"policies[0].ingress[1].not_protocol: 256 is no protocol":          rule(&Rule{NotProtocol: 256}),
		"policies[0].subject.pods.requirements[0].values[0]: text 3 of 2":  {Policies: []*Policy{{Kind: 1, Tier: 1, Name: n, Subject: &Selector{Pods: &LabelSelector{Requirements: []*Requirement{{Values: []uint32{3}}}}}}}},
		"policies[0].name: no name":                                        {Policies: []*Policy{{Kind: 1, Tier: 1}}},
		"policies[0].kind: no name":                                        {Policies: []*Policy{{Name: n, Tier: 1}}},
		"policies[0].tier: no name":                                        {Policies: []*Policy{{Name: n, Kind: 1}}},
		"staged[0].policy: is not there":                                   {Staged: []*StagedPolicy{{}}},
		"staged[0].policy.name: no name":                                   {Staged: []*StagedPolicy{{Policy: &Policy{Kind: 1, Tier: 1}}}},
		"blocks[0].cidr: no prefix":                                        {Blocks: []*Block{{}}},
		"pools[0].cidr: 3 bytes are no prefix":                             {Pools: []*Pool{{Name: n, Cidr: make([]byte, 3)}}},
		"host_endpoints[0].profiles[0]: text 3 of 2":                       {HostEndpoints: []*HostEndpoint{{Name: n, Profiles: []uint32{3}}}},
		"network_sets[0].nets[0]: 1 bytes are no prefix":                   {NetworkSets: []*NetworkSet{{Name: n, Nets: [][]byte{n}}}},
		"service_accounts[0].namespace: text 3 of 2":                       {ServiceAccounts: []*ServiceAccount{{Name: 1, Namespace: 3}}},
		"tiers[0].name: no name":                                           {Tiers: []*Tier{{}}},
		"service_cidrs.prefixes[0]: 1 bytes are no prefix":                 {ServiceCidrs: &Prefixes{Prefixes: [][]byte{n}}},
		"reserved.prefixes[1]: 1 bytes are no prefix":                      {Reserved: &Prefixes{Prefixes: [][]byte{nil, n}}},
		"gone.namespaces[0]: no name":                                      {Gone: &Gone{Namespaces: [][]byte{nil}}},
		"gone.pods[0].namespace: text 3 of 2":                              {Gone: &Gone{Pods: []*Names{{Namespace: 3}}}},
		"gone.pods[1].names[0]: no name":                                   {Gone: &Gone{Pods: []*Names{{}, {Names: [][]byte{nil}}}}},
		"gone.policies[0].kind: text 3 of 2":                               {Gone: &Gone{Policies: []*PolicyNames{{Kind: 3, Names: [][]byte{n}}}}},
		"gone.blocks[0]: no prefix":                                        {Gone: &Gone{Blocks: [][]byte{nil}}},
		"gone.blocks[1]: 2 bytes are no prefix":                            {Gone: &Gone{Blocks: [][]byte{{1, 2, 3, 4, 32}, {1, 2}}}},
	} {
		m.Version, m.Texts = Version, [][]byte{[]byte("one"), []byte("two")}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := (&Decoder{Expression: everyExpression}).Decode(b); got != nil || err == nil || err.Error() != want {
			t.Errorf("want %q, have %v", want, err)
		}
	}
}

// TestSmallMessagesStaySmall reads messages that are made to take as much as they can. It is not
// parallel: what others allocate would be counted.
func TestSmallMessagesStaySmall(t *testing.T) {
	const size = 64 << 10
	pods := []*Pod{{Name: bytes.Repeat([]byte("x"), mostShared)}}
	var rules []*Rule
	var endpoints []*Endpoint
	var texts [][]byte
	var pairs []uint32
	for i := range size / 8 {
		pods = append(pods, &Pod{NameShared: mostShared, Name: []byte{byte(i), byte(i >> 8)}})
	}
	for range size / 2 {
		rules, endpoints, texts = append(rules, &Rule{}), append(endpoints, &Endpoint{}), append(texts, nil)
	}
	for i := range uint32(size / 4) {
		pairs = append(pairs, i, 0)
	}
	n := []byte("n")
	for name, m := range map[string]*Message{
		"pods":      {Pods: []*PodGroup{{Pods: pods}}},
		"rules":     {Texts: [][]byte{n}, Policies: []*Policy{{Kind: 1, Tier: 1, Name: n, Subject: &Selector{}, Ingress: rules}}},
		"endpoints": {Slices: []*EndpointSlice{{Name: n, Endpoints: endpoints}}},
		"texts":     {Texts: texts},
		"labels":    {Texts: texts, Namespaces: []*Namespace{{Name: n, Labels: &Labels{Pairs: pairs}}}},
	} {
		m.Version = Version
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := (&Decoder{}).Decode(b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		runtime.ReadMemStats(&after)
		each := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(b))
		t.Logf("%s: %d bytes take %.0f for each", name, len(b), each)
		if each > 400 {
			t.Errorf("%s: %d bytes take %.0f for each", name, len(b), each)
		}
	}
}

func TestOtherVersions(t *testing.T) {
	t.Parallel()
	for _, v := range []uint32{0, Version + 1} {
		b, err := proto.Marshal(&Message{Version: v})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&Decoder{}).Decode(b); err == nil || !strings.Contains(err.Error(), "version") {
			t.Errorf("version %d: %v", v, err)
		}
	}
	if _, err := (&Decoder{}).Decode([]byte("rubbish")); err == nil {
		t.Error("anything is a message")
	}
}

// record are changes with a little of everything.
func record(t testing.TB) []byte {
	f := &filler{rand.New(rand.NewPCG(1, 5)), true}
	ch := f.changes(t, 2)
	for id := range ch.Policies {
		ch.Policies[id] = nil
		break
	}
	for n := range ch.Pods {
		ch.Pods[n] = nil
		break
	}
	messages, err := Encoder{}.Marshal(ch)
	if err != nil || len(messages) != 1 {
		t.Fatal(len(messages), err)
	}
	return messages[0]
}

// FuzzDecode reads any bytes: what is a message says, when it is sent again, the same again.
func FuzzDecode(f *testing.F) {
	f.Add(record(f))
	small, err := Encoder{}.Marshal(cluster(20))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(small[0])
	policy, err := proto.Marshal(message(model.KindNetworkPolicy, model.Pass))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(policy)
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := (&Decoder{Expression: everyExpression}).Decode(data)
		if err != nil {
			return
		}
		first, err := Encoder{Size: MostSize}.Marshal(m.Changes)
		if err != nil || len(first) != 1 {
			return // what is not understood is reported in texts, which may make it too large
		}
		again, err := (&Decoder{Expression: everyExpression}).Decode(first[0])
		if err != nil {
			t.Fatalf("it is not read again: %v", err)
		}
		if len(again.NotUnderstood) > 0 {
			t.Errorf("it is not understood again: %v", again.NotUnderstood)
		}
		second, err := Encoder{Size: MostSize}.Marshal(again.Changes)
		if err != nil || !bytes.Equal(first[0], second[0]) {
			t.Errorf("it changes when it is sent again: %v", err)
		}
	})
}

// TestRecorded reads a message of each version that is still read, as it was sent when the version
// was new: a field that is renumbered, or means something else, shows here.
func TestRecorded(t *testing.T) {
	t.Parallel()
	path := filepath.Join("testdata", "version1")
	if os.Getenv("WEIR_RECORD") != "" {
		if err := os.WriteFile(path, record1(t), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := (&Decoder{Expression: everyExpression}).Decode(b)
	if err != nil || len(m.NotUnderstood) > 0 {
		t.Fatal(m, err)
	}
	if d := differ(recorded(), m.Changes); d != "" {
		t.Error(d)
	}
}

func record1(t *testing.T) []byte {
	messages, err := Encoder{}.Marshal(recorded())
	if err != nil || len(messages) != 1 {
		t.Fatal(len(messages), err)
	}
	return messages[0]
}
