// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch/parse"
)

// converted converts an object as the API server sends it.
func converted[T, V any](t *testing.T, convert func(*T) (*V, []weirv1.Problem), name string, s spec) (*V, []weirv1.Problem) {
	t.Helper()
	var o T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec{"metadata": spec{"name": name}, "spec": s}, &o); err != nil {
		t.Fatal(err)
	}
	return convert(&o)
}

type spec = map[string]any

func TestConvertBGPPeer(t *testing.T) {
	secret := spec{"secretKeyRef": spec{"name": "s", "key": "k"}}
	for name, c := range map[string]struct {
		spec     spec
		want     *model.BGPPeer
		problems string // fields
	}{
		"router": {spec{"peerIP": "192.0.2.9", "asNumber": int64(64999)}, &model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 64999}, ""},
		"all": {spec{"peerIP": "[2001:db8::9]:1790", "asNumber": "64.512", "node": "a", "localASNumber": int64(7), "password": secret, "maxRestartTime": "30s", "keepaliveTime": "5s",
			"ttlSecurity": int64(1), "sourceAddress": "None", "numAllowedLocalASNumbers": int64(2), "failureDetectionMode": "BFDIfDirectlyConnected"},
			&model.BGPPeer{Node: "a", Addr: netip.MustParseAddr("2001:db8::9"), Port: 1790, ASN: 64<<16 + 512, LocalASN: 7, Password: model.SecretKey{Name: "s", Key: "k"}, Restart: 30,
				Keepalive: 5, TTLHops: 1, AnySource: true, AllowedAS: 2, BFD: true}, ""},
		"IPv6 without a port": {spec{"peerIP": "2001:db8::9", "asNumber": int64(1)}, &model.BGPPeer{Addr: netip.MustParseAddr("2001:db8::9"), ASN: 1}, ""},
		"nodes":               {spec{"nodeSelector": "a == 'b'", "peerSelector": "all()", "reversePeering": "Manual"}, &model.BGPPeer{NodeSelector: "a == 'b'", PeerSelector: "all()", Manual: true}, ""},
		"nobody":              {spec{}, nil, "spec.peerIP"},
		"no number":           {spec{"peerIP": "192.0.2.9"}, nil, "spec.asNumber"},
		"two of nodes":        {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "node": "a", "nodeSelector": "all()"}, nil, "spec.nodeSelector"},
		"two of peers":        {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "peerSelector": "all()"}, nil, "spec.peerSelector"},
		"a bad selector":      {spec{"peerSelector": "a ="}, nil, "spec.peerSelector"},
		"no address":          {spec{"peerIP": "router", "asNumber": int64(1)}, nil, "spec.peerIP"},
		"port 0":              {spec{"peerIP": "192.0.2.9:0", "asNumber": int64(1)}, nil, "spec.peerIP"},
		"a loopback":          {spec{"peerIP": "127.0.0.1", "asNumber": int64(1)}, nil, "spec.peerIP"},
		"no key":              {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "password": spec{"secretKeyRef": spec{"name": "s", "key": ""}}}, nil, "spec.password.secretKeyRef"},
		"filters":             {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "filters": []any{"f", "g"}}, &model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1, Filters: []string{"f", "g"}}, ""},
		"workloads":           {spec{"localWorkloadSelector": "all()", "asNumber": int64(1)}, nil, "spec.localWorkloadSelector"},
		"next hops": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "nextHopMode": "Self", "reachableBy": "192.0.2.8", "keepOriginalNextHop": true},
			&model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1, NextHop: "Self", Via: netip.MustParseAddr("192.0.2.8")}, ""},
		"next hops kept": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "keepOriginalNextHop": true},
			&model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1, NextHop: "Keep"}, ""},
		"next hops as always": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "keepOriginalNextHop": true, "nextHopMode": "Auto"},
			&model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1}, ""},
		"other next hops": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "nextHopMode": "Nobody", "reachableBy": "2001:db8::1"},
			&model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1}, "spec.nextHopMode spec.reachableBy"},
		"reached by itself": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "reachableBy": "192.0.2.9"}, &model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1}, "spec.reachableBy"},
		"reached by a port": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "reachableBy": "192.0.2.8:179"}, &model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1}, "spec.reachableBy"},
		"nodes reached by":  {spec{"peerSelector": "all()", "reachableBy": "192.0.2.8"}, &model.BGPPeer{PeerSelector: "all()"}, "spec.reachableBy"},
		"long-lived":        {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "restartMode": "LongLivedGracefulRestart"}, &model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1, LongLived: 3600}, ""},
		"long-lived for a day": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "restartMode": "LongLivedGracefulRestart", "maxRestartTime": "24h"},
			&model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1, LongLived: 86400}, ""},
		"another restart": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "restartMode": "x", "maxRestartTime": "60s"}, &model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1, Restart: 60}, "spec.restartMode"},
		"another mode": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "failureDetectionMode": "x"},
			&model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1}, "spec.failureDetectionMode"},
		"out of range": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "maxRestartTime": "2h", "keepaliveTime": "1ms", "numAllowedLocalASNumbers": int64(-1), "sourceAddress": "x"},
			&model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1}, "spec.maxRestartTime spec.keepaliveTime spec.sourceAddress spec.numAllowedLocalASNumbers"},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := converted(t, ConvertPeer, "x", c.spec)
			if c.want != nil {
				c.want.Name = "x"
			}
			if (got == nil) != (c.want == nil) || got != nil && !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			var fields []string
			for _, p := range problems {
				fields = append(fields, p.Field)
				if p.Object != "BGPPeer x" || p.Message == "" || p.Action == "" {
					t.Errorf("problem %+v", p)
				}
			}
			if text := strings.Join(fields, " "); text != c.problems {
				t.Errorf("problems with %s, want %s: %v", text, c.problems, problems)
			}
		})
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestConvertBGPConfiguration(t *testing.T) {
	for name, c := range map[string]struct {
		name     string
		spec     spec
		want     *model.BGPConfig
		problems string
	}{
		"empty": {"default", spec{}, &model.BGPConfig{}, ""},
		"all": {"default", spec{"asNumber": int64(65000), "nodeToNodeMeshEnabled": false, "listenPort": int64(1179), "bindMode": "NodeIP", "nodeMeshMaxRestartTime": "10s",
			"nodeMeshPassword": spec{"secretKeyRef": spec{"name": "s", "key": "k"}}},
			&model.BGPConfig{ASN: 65000, MeshDisabled: true, ListenPort: 1179, BindMode: "NodeIP", MeshRestart: 10, MeshPassword: model.SecretKey{Name: "s", Key: "k"}}, ""},
		"of a node": {"node.a", spec{"asNumber": int64(65000), "listenPort": int64(1179), "nodeToNodeMeshEnabled": false},
			&model.BGPConfig{ListenPort: 1179}, "spec.asNumber spec.nodeToNodeMeshEnabled"},
		"another name": {"other", spec{}, nil, "metadata.name"},
		"not yet":      {"default", spec{"ignoredInterfaces": []any{"x"}, "bindMode": "x"}, &model.BGPConfig{}, "spec.bindMode spec.ignoredInterfaces"},
		"Services": {"default", spec{"serviceClusterIPs": []any{spec{"cidr": "fd01::/112"}, spec{"cidr": "10.96.0.1/12"}}, "serviceExternalIPs": []any{spec{"cidr": "198.51.100.7"}, spec{"cidr": "x"}, spec{"cidr": "0.0.0.0/0"}},
			"serviceLoadBalancerIPs": []any{spec{"cidr": "203.0.113.0/24"}}, "serviceLoadBalancerAggregation": "Disabled"},
			&model.BGPConfig{ClusterIPs: prefixes("10.96.0.0/12", "fd01::/112"), ExternalIPs: prefixes("198.51.100.7/32"), BalancerIPs: prefixes("203.0.113.0/24"), BalancersSingly: true},
			"spec.serviceExternalIPs[1].cidr spec.serviceExternalIPs[2].cidr"},
		"Services of a node": {"node.a", spec{"serviceClusterIPs": []any{spec{"cidr": "10.96.0.0/12"}}, "serviceLoadBalancerAggregation": "Enabled"}, &model.BGPConfig{}, "spec.serviceClusterIPs"},
		"communities": {"node.a", spec{"communities": []any{spec{"name": "a", "value": "1:2"}, spec{"name": "b", "value": "1:2:70000"}, spec{"name": "c", "value": "1:70000"}, spec{"value": "1:1"}},
			"prefixAdvertisements": []any{spec{"cidr": "10.0.0.0/8", "communities": []any{"a", "7:7", "7:x"}}, spec{"cidr": "x", "communities": []any{"a"}}}},
			&model.BGPConfig{Communities: map[string]string{"a": "1:2", "b": "1:2:70000"}, Tagged: []model.BGPTag{{CIDR: netip.MustParsePrefix("10.0.0.0/8"), Communities: []string{"a", "7:7"}}}},
			"spec.communities[2].value spec.communities[3].name spec.prefixAdvertisements[0].communities[2] spec.prefixAdvertisements[1].cidr"},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := converted(t, ConvertConfiguration, c.name, c.spec)
			if c.want != nil {
				c.want.Name = c.name
			}
			if (got == nil) != (c.want == nil) || got != nil && !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			var fields []string
			for _, p := range problems {
				fields = append(fields, p.Field)
			}
			if text := strings.Join(fields, " "); text != c.problems {
				t.Errorf("problems with %s, want %s: %v", text, c.problems, problems)
			}
		})
	}
}

func TestNodesSayTheirBGP(t *testing.T) {
	node := func(annotations map[string]string) (*model.Node, int) {
		f, n := parse.NewFinding("Node", &metav1.ObjectMeta{Name: "a"}), &model.Node{Name: "a"}
		ReadNode(f, annotations, n)
		return n, len(f.List)
	}
	if n, bad := node(map[string]string{model.AnnotationASN: "65001", model.AnnotationClusterID: "224.0.0.1"}); n.ASN != 65001 || n.ClusterID.String() != "224.0.0.1" || bad != 0 {
		t.Errorf("%+v, %d problems", n, bad)
	}
	if n, bad := node(map[string]string{model.AnnotationASN: "x", model.AnnotationClusterID: "y"}); n.ASN != 0 || n.ClusterID.IsValid() || bad != 2 {
		t.Errorf("%+v, %d problems", n, bad)
	}
}

func TestConvertBGPFilter(t *testing.T) {
	prefix := netip.MustParsePrefix
	for name, c := range map[string]struct {
		rule     spec // of importV4
		want     *model.BGPRule
		problems string // fields below the rule
	}{
		"all":             {spec{"action": "Reject"}, &model.BGPRule{}, ""},
		"in":              {spec{"action": "Accept", "cidr": "10.1.2.3/16", "matchOperator": "In"}, &model.BGPRule{Accept: true, CIDR: prefix("10.1.0.0/16"), MinBits: 16, MaxBits: 32}, ""},
		"not in, lengths": {spec{"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "NotIn", "prefixLength": spec{"min": int64(4), "max": int64(24)}}, &model.BGPRule{Accept: true, CIDR: prefix("10.0.0.0/8"), Not: true, MinBits: 8, MaxBits: 24}, ""},
		"equal":           {spec{"action": "Accept", "cidr": "10.1.0.0/16", "matchOperator": "Equal"}, &model.BGPRule{Accept: true, CIDR: prefix("10.1.0.0/16"), MinBits: 16, MaxBits: 16}, ""},
		"not equal":       {spec{"action": "Accept", "cidr": "0.0.0.0/0", "matchOperator": "NotEqual", "prefixLength": spec{"max": int64(8)}}, &model.BGPRule{Accept: true, CIDR: prefix("0.0.0.0/0"), Not: true}, ""},
		"the rest": {spec{"action": "Accept", "source": "RemotePeers", "peerType": "eBGP", "communities": spec{"values": []any{"1:2"}}, "asPathPrefix": []any{int64(7), "1.2"},
			"operations": []any{spec{"addCommunity": spec{"value": "1:2:3"}}, spec{"prependASPath": spec{"prefix": []any{int64(1), int64(2)}}}, spec{"prependASPath": spec{"prefix": []any{int64(3)}}}}},
			&model.BGPRule{Accept: true, Remote: true, PeerType: "eBGP", Community: "1:2", ASPath: []uint32{7, 65538}, Add: []string{"1:2:3"}, Prepend: []uint32{3, 1, 2}}, ""},
		"priorities": {spec{"action": "Accept", "priority": int64(512), "operations": []any{spec{"setPriority": spec{"value": int64(4)}}, spec{"setPriority": spec{"value": int64(3)}}}},
			&model.BGPRule{Accept: true, Priority: 512, SetPriority: 3}, ""},
		// Nothing is known of this: the rule is not there.
		"interface": {spec{"action": "Reject", "interface": "*.calico"}, nil, ".interface"},
		// What cannot be read rejects.
		"an action":         {spec{"action": "Maybe"}, &model.BGPRule{}, ".action"},
		"a CIDR":            {spec{"action": "Accept", "cidr": "x", "matchOperator": "In"}, &model.BGPRule{}, ".cidr"},
		"another family":    {spec{"action": "Accept", "cidr": "fd00::/8", "matchOperator": "In"}, &model.BGPRule{}, ".cidr"},
		"no operator":       {spec{"action": "Accept", "cidr": "10.0.0.0/8"}, &model.BGPRule{}, ".matchOperator"},
		"operator alone":    {spec{"action": "Accept", "matchOperator": "In"}, &model.BGPRule{}, ".matchOperator"},
		"lengths alone":     {spec{"action": "Accept", "prefixLength": spec{"min": int64(3)}}, &model.BGPRule{}, ".prefixLength"},
		"too long":          {spec{"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": spec{"max": int64(64)}}, &model.BGPRule{}, ".prefixLength.max"},
		"no length":         {spec{"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": spec{"max": int64(7)}}, &model.BGPRule{}, ".prefixLength"},
		"no equal length":   {spec{"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "Equal", "prefixLength": spec{"min": int64(9)}}, &model.BGPRule{}, ".prefixLength"},
		"a source":          {spec{"action": "Accept", "source": "x"}, &model.BGPRule{}, ".source"},
		"a type":            {spec{"action": "Accept", "peerType": "x"}, &model.BGPRule{}, ".peerType"},
		"a community":       {spec{"action": "Accept", "communities": spec{"values": []any{"65536:1"}}}, &model.BGPRule{}, ".communities.values[0]"},
		"two communities":   {spec{"action": "Accept", "communities": spec{"values": []any{"1:1", "1:2"}}}, &model.BGPRule{}, ".communities.values"},
		"a rejected change": {spec{"action": "Reject", "operations": []any{spec{"addCommunity": spec{"value": "1:1"}}}}, &model.BGPRule{}, ".operations"},
		"a bad change":      {spec{"action": "Accept", "operations": []any{spec{"addCommunity": spec{"value": "01:1"}}}}, &model.BGPRule{}, ".operations[0].addCommunity.value"},
		"a priority":        {spec{"action": "Accept", "priority": int64(1<<31 - 1)}, &model.BGPRule{}, ".priority"},
		"priority 0":        {spec{"action": "Accept", "operations": []any{spec{"setPriority": spec{"value": int64(0)}}}}, &model.BGPRule{}, ".operations[0].setPriority.value"},
		"no change":         {spec{"action": "Accept", "operations": []any{spec{}}}, &model.BGPRule{}, ".operations[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := converted(t, ConvertFilter, "x", spec{"importV4": []any{c.rule}})
			want := &model.BGPFilter{Name: "x"}
			if c.want != nil {
				want.Import4 = []model.BGPRule{*c.want}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			var fields []string
			for _, p := range problems {
				fields = append(fields, strings.TrimPrefix(p.Field, "spec.importV4[0]"))
			}
			if text := strings.Join(fields, " "); text != c.problems {
				t.Errorf("problems %v, want %s", problems, c.problems)
			}
		})
	}
	// Each list is of its direction and family.
	rule := func(cidr string) []any {
		return []any{spec{"action": "Accept", "cidr": cidr, "matchOperator": "Equal"}}
	}
	got, problems := converted(t, ConvertFilter, "x", spec{"exportV4": rule("10.0.0.0/8"), "importV4": rule("11.0.0.0/8"), "exportV6": rule("fd00::/8"), "importV6": rule("fc00::/8")})
	if len(problems) > 0 || got.Export4[0].CIDR != prefix("10.0.0.0/8") || got.Import4[0].CIDR != prefix("11.0.0.0/8") || got.Export6[0].CIDR != prefix("fd00::/8") || got.Import6[0].CIDR != prefix("fc00::/8") {
		t.Errorf("%+v, %v", got, problems)
	}
}
