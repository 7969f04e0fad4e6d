// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

func TestHostilePoolsByAnnotation(t *testing.T) {
	hostile.Record(t, "a Service names a pool by annotation whose namespaceSelector does not match its namespace", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for v6, p := range map[bool]model.Pool{false: poolOf4, true: poolOf6} {
		p.NamespaceSelector, p.LoadBalancer = "team == 'shop'", true
		v := newView(All, []model.Pool{p}, nil, map[string]map[string]string{"ns": {"team": "other"}, "shop": {"team": "shop"}})
		s := balancer("evil", annotated(annotationPools4, `["lb"]`), annotated(annotationPools6, `["lb"]`))
		if v6 {
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
		}
		b := newBook(nil)
		if got := v.assign(s, newRequest(s), b); len(got.addrs) > 0 || len(got.errs) != 1 || !strings.Contains(got.errs[0], "namespaceSelector") {
			t.Errorf("%+v", got)
		}
		s.Namespace = "shop"
		if got := v.assign(s, newRequest(s), b); len(got.addrs) != 1 || len(got.errs) > 0 {
			t.Errorf("a Service of the namespace: %+v", got)
		}
	}
}

var (
	poolOf4 = model.Pool{Name: "lb", CIDR: netip.MustParsePrefix("192.0.2.0/28"), BlockBits: 28}
	poolOf6 = model.Pool{Name: "lb", CIDR: netip.MustParsePrefix("2001:db8::/124"), BlockBits: 124}
)
