// SPDX-License-Identifier: Apache-2.0

package flannel

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/migrate/plan"
	"github.com/weir-net/weir/internal/migrate/plan/plantest"
)

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
	if p.Stopped() || p.Version != "v0.28.10" || len(p.Nodes) != 2 || p.Nodes[1].Networks[0] != "10.244.1.0/24" || p.Nodes[0].Pods != 1 {
		t.Fatalf("%+v", p)
	}
	if f := plantest.Find(p, "NetworkPolicy shop/web", "spec.podSelector"); f == nil || !strings.Contains(f.Message, "in force with Weir") {
		t.Errorf("a policy without effect until now: %+v", p.Findings)
	}
	if plantest.Find(p, "Pod shop/web-1", "metadata.ownerReferences") == nil || plantest.Find(p, "Pod shop/db-0", "metadata.ownerReferences") != nil {
		t.Errorf("pods without a controller: %+v", p.Findings)
	}
	of := map[string]map[string]any{}
	for _, u := range p.Objects {
		of[u.GetKind()], _, _ = unstructured.NestedMap(u.Object, "spec")
	}
	if s := of["IPPool"]; s["cidr"] != "10.244.0.0/16" || s["blockSize"] != int64(24) || s["vxlanMode"] != "Always" || s["natOutgoing"] != true {
		t.Errorf("pool %v", s)
	}
	if s := of["FelixConfiguration"]; s["vxlanPort"] != int64(8472) || s["vxlanVNI"] != int64(1) || s["bpfEnabled"] != false {
		t.Errorf("settings %v", s)
	}
	if s := of["IPAMConfiguration"]; s["maxBlocksPerHost"] != int64(1) {
		t.Errorf("IPAM %v", s)
	}
	if s := of["IPReservation"]["reservedCIDRs"].([]any); len(s) != 2 || s[1] != "10.244.1.0/31" {
		t.Errorf("reserved %v", s)
	}
	if p := planned(t, "--ip-masq, ", ""); p.Objects[2].Object["spec"].(map[string]any)["natOutgoing"] != false {
		t.Error("source NAT, which flannel does not do")
	}
	if p := planned(t, `"Type": "vxlan"`, `"Type": "vxlan", "VNI": 7, "Port": 4789`); p.Objects[0].Object["spec"].(map[string]any)["vxlanVNI"] != int64(7) {
		t.Errorf("%+v", p.Objects[0])
	}
}

// TestWhatStops: each of these stops a migration, and the finding names the field.
func TestWhatStops(t *testing.T) {
	for _, c := range []struct{ old, with, object, field string }{
		{"labels: {app: flannel, tier: node, k8s-app", "labels: {k8s-app", "DaemonSet kube-flannel-ds", ""},
		{", --kube-subnet-mgr", "", "DaemonSet kube-flannel/kube-flannel-ds", "--kube-subnet-mgr"},
		{"--kube-subnet-mgr", "--kube-subnet-mgr, --kube-annotation-prefix=a.b", "DaemonSet kube-flannel/kube-flannel-ds", "--kube-annotation-prefix"},
		{"name: kube-flannel-cfg", "name: another", "ConfigMap kube-flannel-cfg", ""},
		{`{"Network"`, `"Network"`, "ConfigMap kube-flannel-cfg", "data.net-conf.json"},
		{"10.244.0.0/16", "fd00::/48", "ConfigMap kube-flannel-cfg", "data.net-conf.json.Network"},
		{`"EnableNFTables": false`, `"EnableNFTables": true`, "ConfigMap kube-flannel-cfg", "data.net-conf.json.EnableNFTables"},
		{`"EnableNFTables"`, `"EnableIPv6": true, "EnableNFTables"`, "ConfigMap kube-flannel-cfg", "data.net-conf.json.EnableIPv6"},
		{`"Type": "vxlan"`, `"Type": "host-gw"`, "ConfigMap kube-flannel-cfg", "data.net-conf.json.Backend.Type"},
		{`"Type": "vxlan"`, `"Type": "vxlan", "DirectRouting": true`, "ConfigMap kube-flannel-cfg", "data.net-conf.json.Backend.DirectRouting"},
		{`"Type": "vxlan"`, `"Type": "vxlan", "VNI": 0`, "ConfigMap kube-flannel-cfg", "data.net-conf.json.Backend"},
		{"podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24]", "podCIDR: 10.9.1.0/24", "Node node-b", "spec.podCIDR"},
		{"podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24]", "podCIDR: 10.244.1.0/25", "Node node-b", "spec.podCIDR"},
		{"public-ip: 192.0.2.11", "public-ip: 203.0.113.1", "Node node-b", "metadata.annotations[flannel.alpha.coreos.com/public-ip]"},
		{"5e:ae:2a:81:0c:12", "ff:ff:ff:ff:ff:ff", "Node node-b", "metadata.annotations[flannel.alpha.coreos.com/backend-data]"},
		{"backend-type: vxlan", "backend-type: udp", "Node node-a", "metadata.annotations[flannel.alpha.coreos.com/backend-type]"},
	} {
		p := planned(t, c.old, c.with)
		if f := plantest.Find(p, c.object, c.field); f == nil || !f.Stops || !p.Findings[0].Stops {
			t.Errorf("%s: %s, %s is not found: %+v", c.with, c.object, c.field, p.Findings)
		}
	}
}

// TestWhatDiffers: each of these is said, and stops nothing.
func TestWhatDiffers(t *testing.T) {
	for _, c := range []struct{ old, with, field string }{
		{`"hairpinMode": true`, `"bridge": "docker0"`, "data.cni-conf.json.delegate.bridge"},
		{`"type": "portmap"`, `"type": "tuning"`, "data.cni-conf.json.plugins"},
		{`"Type": "vxlan"`, `"Type": "vxlan", "MacPrefix": "0E-2A"`, "data.net-conf.json.Backend.MacPrefix"},
	} {
		p := planned(t, c.old, c.with)
		if f := plantest.Find(p, "ConfigMap kube-flannel-cfg", c.field); f == nil || f.Stops || p.Stopped() {
			t.Errorf("%s: %+v", c.with, p.Findings)
		}
	}
	if p := planned(t, "      containers:\n", "      containers:\n      - {name: kube-network-policies}\n"); plantest.Find(p, "NetworkPolicy shop/web", "spec.podSelector") != nil {
		t.Error("a policy that is in force is reported")
	}
}
