// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"math"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/model"
)

// TestQoS holds what annotations of pods say of limits, and that each that is not in force as it is
// written is reported.
func TestQoS(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		want        model.QoS
		found       []string // annotations
	}{
		"nothing": {},
		"Kubernetes' own": {annotations: map[string]string{AnnotationIngress: "10M", AnnotationEgress: "1500k"},
			want: model.QoS{Ingress: model.Limits{Bandwidth: 10e6}, Egress: model.Limits{Bandwidth: 1500e3}}},
		"Calico's come first": {annotations: map[string]string{AnnotationIngress: "10M", PrefixQoS + "ingressBandwidth": "2Mi"},
			want: model.QoS{Ingress: model.Limits{Bandwidth: 2 << 20}}},
		"all": {annotations: map[string]string{PrefixQoS + "egressBandwidth": "1G", PrefixQoS + "egressBurst": "1M", PrefixQoS + "egressPeakrate": "2G",
			PrefixQoS + "egressMinburst": "9k"},
			want: model.QoS{Egress: model.Limits{Bandwidth: 1e9, Burst: 1e6, Peakrate: 2e9, Minburst: 9000}}},
		"no quantity": {annotations: map[string]string{PrefixQoS + "egressBandwidth": "fast", PrefixQoS + "egressBurst": "1M"},
			found: []string{"egressBandwidth", "egressBurst"}},
		"out of range": {annotations: map[string]string{PrefixQoS + "ingressBandwidth": "1", PrefixQoS + "egressBandwidth": "9E"},
			want:  model.QoS{Ingress: model.Limits{Bandwidth: 1e3}, Egress: model.Limits{Bandwidth: 1e15}},
			found: []string{"ingressBandwidth", "egressBandwidth"}},
		"without what it belongs to": {annotations: map[string]string{PrefixQoS + "ingressBurst": "1M", PrefixQoS + "egressMinburst": "9k"},
			found: []string{"ingressBurst", "egressMinburst"}},
		"a peak below": {annotations: map[string]string{PrefixQoS + "ingressBandwidth": "2M", PrefixQoS + "ingressPeakrate": "2M", PrefixQoS + "ingressMinburst": "2k"},
			want: model.QoS{Ingress: model.Limits{Bandwidth: 2e6}}, found: []string{"ingressPeakrate", "ingressMinburst"}},
		"packets, connections and a name": {annotations: map[string]string{PrefixQoS + "ingressPacketRate": "1k", PrefixQoS + "ingressPacketBurst": "20",
			PrefixQoS + "egressPacketRate": "10k", PrefixQoS + "egressMaxConnections": "4294967295", PrefixQoS + "ingressMaxConnections": "7", PrefixQoS + "dscp": "af41"},
			want: model.QoS{Ingress: model.Limits{PacketRate: 1000, PacketBurst: 20, Connections: 7},
				Egress: model.Limits{PacketRate: 10_000, Connections: math.MaxUint32}, DSCP: 35}},
		"DSCP 0 is one": {annotations: map[string]string{PrefixQoS + "dscp": "0"}, want: model.QoS{DSCP: 1}},
		"no DSCP":       {annotations: map[string]string{PrefixQoS + "dscp": "64", PrefixQoS + "ingressPacketBurst": "5"}, found: []string{"dscp", "ingressPacketBurst"}},
		"too many packets": {annotations: map[string]string{PrefixQoS + "egressPacketRate": "1M", PrefixQoS + "egressPacketBurst": "0", PrefixQoS + "egressMaxConnections": "5G"},
			want:  model.QoS{Egress: model.Limits{PacketRate: 10_000, PacketBurst: 1, Connections: math.MaxUint32}},
			found: []string{"egressMaxConnections", "egressPacketBurst", "egressPacketRate"}},
	} {
		f := NewFinding("Pod", &metav1.ObjectMeta{Namespace: "shop", Name: "web"})
		got := f.QoS(c.annotations)
		want := &c.want
		if c.want == (model.QoS{}) {
			want = nil
		}
		if !got.Equal(want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		var found []string
		for _, p := range f.List {
			if p.Object != "Pod shop/web" || p.Value == "" || p.Action == "" {
				t.Errorf("%s: %+v", name, p)
			}
			found = append(found, strings.TrimSuffix(strings.TrimPrefix(p.Field, "metadata.annotations["+PrefixQoS), "]"))
		}
		slices.Sort(found)
		slices.Sort(c.found)
		if !slices.Equal(found, c.found) {
			t.Errorf("%s: found %v, want %v", name, found, c.found)
		}
	}
}
