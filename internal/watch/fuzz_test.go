// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"encoding/json"
	"net/netip"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// FuzzConvertObjects makes objects of any bytes that the API's types can be read from. Whoever may
// write an object may put anything into it that its schema allows: the conversions do not panic,
// and what they let through are addresses and prefixes that the tables can hold.
func FuzzConvertObjects(f *testing.F) {
	for kind, text := range []string{
		`{"metadata":{"name":"s","namespace":"n"},"spec":{"clusterIPs":["10.96.0.1"],"externalIPs":["192.0.2.1","::ffff:192.0.2.1"],"ports":[{"port":80,"nodePort":30000}],"loadBalancerSourceRanges":["10.0.0.0/8"]}}`,
		`{"metadata":{"name":"s","namespace":"n","labels":{"kubernetes.io/service-name":"s"}},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"port":80}]}`,
		`{"metadata":{"name":"p","namespace":"n"},"spec":{"nodeName":"a","containers":[{"ports":[{"containerPort":80,"hostPort":80,"hostIP":"fe80::1"}]}]},"status":{"podIPs":[{"ip":"10.0.0.1"}]}}`,
		`{"metadata":{"name":"a"},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}`,
		`{"metadata":{"name":"b"},"spec":{"cidr":"10.0.0.0/26","node":"a"}}`,
		`{"metadata":{"name":"a"},"status":{"linkAddress":"02:00:00:00:00:01","subnets":["10.0.0.0/24"]}}`,
		`{"metadata":{"name":"p"},"spec":{"cidr":"10.0.0.0/16","blockSize":26,"vxlanMode":"Always"}}`,
		`{"metadata":{"name":"h"},"spec":{"node":"a","interfaceName":"eth0","expectedIPs":["10.0.0.1"]}}`,
	} {
		f.Add(uint8(kind), []byte(text))
	}
	f.Fuzz(func(t *testing.T, kind uint8, text []byte) {
		switch kind % 8 {
		case 0:
			if s := decoded[corev1.Service](text); s != nil {
				got, _ := ConvertService(s)
				if got == nil {
					return
				}
				checkAddrs(t, got.ClusterIPs, got.ExternalIPs, got.LBIPs)
				checkPrefixes(t, got.SourceRanges)
			}
		case 1:
			if s := decoded[discoveryv1.EndpointSlice](text); s != nil {
				got, _ := ConvertEndpointSlice(s)
				if got == nil {
					return
				}
				for _, e := range got.Endpoints {
					checkAddrs(t, e.Addrs)
				}
			}
		case 2:
			if p := decoded[corev1.Pod](text); p != nil {
				if got, _ := ConvertPod(p); got != nil {
					checkAddrs(t, got.Addrs)
				}
			}
		case 3:
			if n := decoded[corev1.Node](text); n != nil {
				if got, _ := ConvertNode(n); got != nil {
					checkAddrs(t, got.Addrs)
				}
			}
		case 4:
			if b := decoded[weirv1.IPAMBlock](text); b != nil {
				if got, _ := ConvertBlock(b); got != nil {
					checkPrefixes(t, []netip.Prefix{got.CIDR})
				}
			}
		case 5:
			if s := decoded[weirv1.NodeStatus](text); s != nil {
				ConvertNodeStatus(s)
			}
		case 6:
			if p := decoded[v3.IPPool](text); p != nil {
				if got, _ := ConvertPool(p); got != nil {
					checkPrefixes(t, []netip.Prefix{got.CIDR})
				}
			}
		case 7:
			if h := decoded[v3.HostEndpoint](text); h != nil {
				if got, _ := ConvertHostEndpoint(h); got != nil {
					checkAddrs(t, got.ExpectedIPs)
				}
			}
		}
	})
}

// decoded is nil for what the API would not store.
func decoded[T any](text []byte) *T {
	var v T
	if json.Unmarshal(text, &v) != nil {
		return nil
	}
	return &v
}

func checkAddrs(t *testing.T, lists ...[]netip.Addr) {
	t.Helper()
	for _, list := range lists {
		for _, a := range list {
			if !a.IsValid() || a.Zone() != "" || a.Is4In6() || a.IsMulticast() || a.IsUnspecified() {
				t.Errorf("address %v", a)
			}
		}
	}
}

func checkPrefixes(t *testing.T, list []netip.Prefix) {
	t.Helper()
	for _, p := range list {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			t.Errorf("prefix %v", p)
		}
	}
}
