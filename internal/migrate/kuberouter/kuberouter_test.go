// SPDX-License-Identifier: Apache-2.0

package kuberouter

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/migrate/plan"
	"github.com/weir-net/weir/internal/migrate/plan/plantest"
)

const daemon = "DaemonSet kube-system/kube-router"

// planned is the plan of the recorded cluster, of which a text is another one.
func planned(t *testing.T, old, with string) *plan.Plan {
	t.Helper()
	c, err := FromObjects(plantest.Objects(t, old, with))
	if err != nil {
		t.Fatal(err)
	}
	return New(c)
}

func TestPlan(t *testing.T) {
	p := planned(t, "", "")
	if p.Stopped() || p.Version != "v2.5.0" || len(p.Nodes) != 2 || p.Nodes[1].Pods != 1 || p.Nodes[0].Networks[0] != "10.244.0.0/24" {
		t.Fatalf("%+v", p)
	}
	for _, want := range [][2]string{{daemon, "--run-service-proxy"}, {daemon, "--cluster-asn"}, {daemon, "--peer-router-ips"}, {daemon, "--advertise-cluster-ip"},
		{"Node node-a", "metadata.annotations[kube-router.io/peer.ips]"}, {"Service shop/db", "metadata.annotations[kube-router.io/service.scheduler]"}} {
		if f := plantest.Find(p, want[0], want[1]); f == nil || f.Stops {
			t.Errorf("%v: %+v", want, f)
		}
	}
	for _, not := range [][2]string{{daemon, "--run-router"}, {daemon, "--kubeconfig"}, {daemon, "--bgp-graceful-restart"}, {"NetworkPolicy shop/web", "spec.podSelector"}} {
		if f := plantest.Find(p, not[0], not[1]); f != nil {
			t.Errorf("%+v", f)
		}
	}
	for _, f := range p.Findings {
		if strings.Contains(f.Field, "password") && f.Value != "" {
			t.Errorf("a password is shown: %+v", f)
		}
	}
	spec, _, _ := unstructured.NestedMap(p.Objects[1].Object, "spec")
	if spec["cidr"] != "10.244.0.0/23" || spec["vxlanMode"] != "CrossSubnet" || spec["natOutgoing"] != true {
		t.Errorf("the pool: %v", spec)
	}
}

// TestFlags: flags that another cluster has, and what stops a migration.
func TestFlags(t *testing.T) {
	for _, c := range []struct {
		old, with, object, field string
		stops                    bool
	}{
		{"--run-router=true", "--run-router=false", daemon, "--run-router", true},
		{"--run-router=true", "--enable-cni=false", daemon, "--enable-cni", true},
		{"--run-router=true", "--masquerade-all", daemon, "--masquerade-all", false},
		{"--run-router=true", "--enable-overlay=false", daemon, "--enable-overlay", false},
		{"--run-firewall=true", "--run-firewall=false", "NetworkPolicy shop/web", "spec.podSelector", false},
		{"name: kube-router, namespace", "name: another, namespace", "DaemonSet kube-router", "", true},
		{"podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24]", "podCIDR: here", "Node node-b", "spec.podCIDR", true},
	} {
		p := planned(t, c.old, c.with)
		if f := plantest.Find(p, c.object, c.field); f == nil || f.Stops != c.stops || p.Stopped() != c.stops {
			t.Errorf("%s: %+v of %+v", c.with, f, p.Findings)
		}
	}
	for with, want := range map[string]string{"--overlay-type=full": "Always", "--enable-overlay=false": "Never"} {
		spec, _, _ := unstructured.NestedMap(planned(t, "--run-router=true", with).Objects[1].Object, "spec")
		if spec["vxlanMode"] != want {
			t.Errorf("%s: the pool %v", with, spec)
		}
	}
}
