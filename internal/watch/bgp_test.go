// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/model"
)

func bgpObject(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}}
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
		// What a filter keeps out must not come in.
		"filters":   {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "filters": []any{"f"}}, nil, "spec.filters"},
		"workloads": {spec{"localWorkloadSelector": "all()", "asNumber": int64(1)}, nil, "spec.localWorkloadSelector"},
		"not yet": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "nextHopMode": "Self", "reachableBy": "192.0.2.8", "keepOriginalNextHop": true},
			&model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1}, "spec.keepOriginalNextHop spec.nextHopMode spec.reachableBy"},
		"another mode": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "failureDetectionMode": "x"},
			&model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1}, "spec.failureDetectionMode"},
		"out of range": {spec{"peerIP": "192.0.2.9", "asNumber": int64(1), "maxRestartTime": "2h", "keepaliveTime": "1ms", "numAllowedLocalASNumbers": int64(-1), "sourceAddress": "x"},
			&model.BGPPeer{Addr: netip.MustParseAddr("192.0.2.9"), ASN: 1}, "spec.maxRestartTime spec.keepaliveTime spec.sourceAddress spec.numAllowedLocalASNumbers"},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := typed("BGPPeer", ConvertBGPPeer)(bgpObject("BGPPeer", "x", c.spec))
			if c.want != nil {
				c.want.Name = "x"
			}
			if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
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
		"not yet": {"default", spec{"serviceClusterIPs": []any{spec{"cidr": "10.96.0.0/12"}}, "communities": []any{spec{"name": "a", "value": "1:2"}},
			"serviceLoadBalancerAggregation": "Disabled", "bindMode": "x"}, &model.BGPConfig{}, "spec.bindMode spec.serviceClusterIPs spec.serviceLoadBalancerAggregation spec.communities"},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := typed("BGPConfiguration", ConvertBGPConfiguration)(bgpObject("BGPConfiguration", c.name, c.spec))
			if c.want != nil {
				c.want.Name = c.name
			}
			if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
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
		n, problems := ConvertNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: annotations}})
		return n, len(problems)
	}
	if n, bad := node(map[string]string{model.AnnotationASN: "65001", model.AnnotationClusterID: "224.0.0.1"}); n.ASN != 65001 || n.ClusterID.String() != "224.0.0.1" || bad != 0 {
		t.Errorf("%+v, %d problems", n, bad)
	}
	if n, bad := node(map[string]string{model.AnnotationASN: "x", model.AnnotationClusterID: "y"}); n.ASN != 0 || n.ClusterID.IsValid() || bad != 2 {
		t.Errorf("%+v, %d problems", n, bad)
	}
}
