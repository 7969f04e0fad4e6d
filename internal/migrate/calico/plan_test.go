// SPDX-License-Identifier: Apache-2.0

package calico

import (
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/deploy"
)

// recorded are the objects of a cluster, after change has had each of them.
func recorded(t *testing.T, change func(*unstructured.Unstructured)) *Cluster {
	t.Helper()
	raw, err := os.ReadFile("testdata/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := deploy.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		change(u)
	}
	c, err := FromObjects(objects)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func unchanged(*unstructured.Unstructured) {}

func (p *Plan) find(object, field string) *Finding {
	for i, f := range p.Findings {
		if f.Object == object && f.Field == field {
			return &p.Findings[i]
		}
	}
	return nil
}

func (p *Plan) copyOf(kind, name string) *unstructured.Unstructured {
	for _, u := range p.Copies {
		if u.GetKind() == kind && u.GetName() == name {
			return u
		}
	}
	return nil
}

func TestPlanOfRecordedCluster(t *testing.T) {
	p := New(recorded(t, unchanged))
	if p.Stopped() || p.Version != "v3.28.5" {
		t.Errorf("version %q, findings %+v", p.Version, p.Findings)
	}
	if len(p.Nodes) != 2 || p.Nodes[0].Name != "node-a" || p.Nodes[0].Pods != 1 || p.Nodes[0].Addresses() != 2 || p.Nodes[1].Pods != 1 {
		t.Fatalf("%+v", p.Nodes)
	}
	a := p.Nodes[0].Blocks[0].Allocations[1]
	if a.Address.String() != "10.244.8.66" || a.Namespace != "shop" || a.Pod != "web-1" || a.Node != "node-a" || !strings.HasPrefix(a.Handle, "k8s-pod-network.0123") {
		t.Errorf("%+v", a)
	}
	var names []string
	for _, u := range p.Copies {
		names = append(names, u.GetAPIVersion()+" "+u.GetKind()+" "+u.GetName())
	}
	want := []string{"projectcalico.org/v3 FelixConfiguration default", "projectcalico.org/v3 GlobalNetworkPolicy default.by-url",
		"projectcalico.org/v3 GlobalNetworkSet partners", "projectcalico.org/v3 IPPool default-ipv4-ippool", "projectcalico.org/v3 NetworkPolicy default.allow-web"}
	if !slices.Equal(names, want) {
		t.Errorf("copies %q", names)
	}
	if labels := p.copyOf("GlobalNetworkSet", "partners").GetLabels(); labels["role"] != "partner" {
		t.Errorf("labels %v: a set's labels are in an annotation", labels)
	}
	if u := p.copyOf("NetworkPolicy", "default.allow-web"); u.GetNamespace() != "shop" || len(u.GetAnnotations()) != 0 {
		t.Errorf("%+v", u.Object)
	}
	if f := p.find("GlobalNetworkPolicy default.by-url", "spec.ingress[0].http"); f == nil || f.Stops {
		t.Errorf("a policy that Weir cannot express: %+v in %+v", f, p.Findings)
	}
}

// TestFelixConfiguration: what the DaemonSet sets wins, and Calico's defaults stay in force.
func TestFelixConfiguration(t *testing.T) {
	p := New(recorded(t, unchanged))
	spec := p.copyOf("FelixConfiguration", "default").Object["spec"].(map[string]any)
	for name, want := range map[string]any{"bpfEnabled": false, "ipv6Support": false, "bpfConnectTimeLoadBalancing": "TCP"} {
		if spec[name] != want {
			t.Errorf("%s is %v, want %v", name, spec[name], want)
		}
	}
	for _, name := range []string{"healthEnabled", "vxlanMTU"} {
		if v, set := spec[name]; set {
			t.Errorf("%s is set to %v", name, v)
		}
	}
	if v, set := spec["defaultEndpointToHostAction"]; set && !strings.EqualFold(v.(string), "accept") {
		t.Errorf("defaultEndpointToHostAction is %v, and the environment says ACCEPT", v)
	}
	if f := p.find("FelixConfiguration default", "spec.iptablesRefreshInterval"); f == nil {
		t.Error("a field of Felix alone is not reported")
	}
	if f := p.find("FelixConfiguration default", "spec.logSeverityScreen"); f != nil {
		t.Errorf("what Calico writes into every cluster is reported: %+v", f)
	}

	// Without the manifest's environment Felix drops what pods send to their node.
	p = New(recorded(t, func(u *unstructured.Unstructured) {
		if u.GetKind() == "DaemonSet" {
			containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
			delete(containers[0].(map[string]any), "env")
			_ = unstructured.SetNestedSlice(u.Object, containers, "spec", "template", "spec", "containers")
		}
	}))
	if v := p.copyOf("FelixConfiguration", "default").Object["spec"].(map[string]any)["defaultEndpointToHostAction"]; v != "Drop" {
		t.Errorf("defaultEndpointToHostAction is %v, Calico's default is Drop", v)
	}
}

// set changes a field of the object of a kind, and of a name.
func set(kind, name string, value any, path ...string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		if u.GetKind() == kind && u.GetName() == name {
			_ = unstructured.SetNestedField(u.Object, value, path...)
		}
	}
}

// TestWhatStops: each of these stops a migration, and the finding names the field.
func TestWhatStops(t *testing.T) {
	for _, c := range []struct {
		name, object, field string
		change              func(*unstructured.Unstructured)
	}{
		{"etcd", "DaemonSet kube-system/calico-node", "DATASTORE_TYPE", func(u *unstructured.Unstructured) {
			if u.GetKind() == "DaemonSet" {
				containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
				containers[0].(map[string]any)["env"] = []any{map[string]any{"name": "DATASTORE_TYPE", "value": "etcdv3"}}
				_ = unstructured.SetNestedSlice(u.Object, containers, "spec", "template", "spec", "containers")
			}
		}},
		{"pool that cannot be read", "IPPool default-ipv4-ippool", "spec.cidr", set("IPPool", "default-ipv4-ippool", "10.244.0.0", "spec", "cidr")},
		{"network configuration that cannot be read", "ConfigMap calico-config", "data.cni_network_config", set("ConfigMap", "calico-config", "{", "data", "cni_network_config")},
		{"no Calico", "DaemonSet calico-node", "", func(u *unstructured.Unstructured) {
			if u.GetKind() == "DaemonSet" {
				u.SetName("another")
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := New(recorded(t, c.change))
			f := p.find(c.object, c.field)
			if f == nil || !f.Stops || !p.Stopped() {
				t.Fatalf("%s %s is not found: %+v", c.object, c.field, p.Findings)
			}
			if !p.Findings[0].Stops {
				t.Errorf("what stops does not come first: %+v", p.Findings[0])
			}
		})
	}
}

// TestWhatDiffers: each of these is said, and stops nothing.
func TestWhatDiffers(t *testing.T) {
	annotated := func(u *unstructured.Unstructured) {
		if u.GetKind() == "Pod" && u.GetName() == "web-1" {
			u.SetAnnotations(map[string]string{"cni.projectcalico.org/ipAddrs": `["10.244.8.66"]`})
		}
	}
	for _, c := range []struct {
		name, object, field string
		change              func(*unstructured.Unstructured)
	}{
		{"a pool of Calico's", "IPPool default-ipv4-ippool", "spec.disabled", unchanged},
		{"no encapsulation", "IPPool default-ipv4-ippool", "spec.vxlanMode", set("IPPool", "default-ipv4-ippool", "Never", "spec", "vxlanMode")},
		{"BIRD", "DaemonSet kube-system/calico-node", "CALICO_NETWORKING_BACKEND", set("ConfigMap", "calico-config", "bird", "data", "calico_backend")},
		{"another plugin", "ConfigMap calico-config", "data.cni_network_config.plugins",
			set("ConfigMap", "calico-config", `{"plugins":[{"type":"calico"},{"type":"tuning"}]}`, "data", "cni_network_config")},
		{"a pod without a controller", "Pod shop/web-1", "metadata.ownerReferences", unchanged},
		{"a fixed address", "Pod shop/web-1", "metadata.annotations[cni.projectcalico.org/ipAddrs]", annotated},
		{"a block that cannot be read", "IPAMBlock 10-244-9-128-26", "spec", set("IPAMBlock", "10-244-9-128-26", []any{int64(7)}, "spec", "allocations")},
		{"strictAffinity", "IPAMConfig default", "spec.strictAffinity", func(u *unstructured.Unstructured) {
			if u.GetKind() == "BlockAffinity" { // in whose place it comes
				u.SetKind("IPAMConfig")
				u.SetName("default")
				u.Object["spec"] = map[string]any{"strictAffinity": false, "autoAllocateBlocks": true}
			}
		}},
		{"a kind that Weir does not have", "RemoteClusterConfiguration far", "", func(u *unstructured.Unstructured) {
			if u.GetKind() == "BlockAffinity" {
				u.SetKind("RemoteClusterConfiguration")
				u.SetName("far")
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := New(recorded(t, c.change))
			if f := p.find(c.object, c.field); f == nil || f.Stops || p.Stopped() {
				t.Fatalf("%s %s: %+v of %+v", c.object, c.field, f, p.Findings)
			}
		})
	}
	p := New(recorded(t, set("IPPool", "default-ipv4-ippool", "Always", "spec", "ipipMode")))
	spec := p.copyOf("IPPool", "default-ipv4-ippool").Object["spec"].(map[string]any)
	if spec["disabled"] != true || spec["ipipMode"] != "Always" {
		t.Errorf("the copy of a pool: %v", spec)
	}
	if p.find("Pod kube-system/proxy", "metadata.ownerReferences") != nil {
		t.Error("a pod of the node's network is not Calico's")
	}
}

// TestOperatorAndServer: what would undo a migration or hide Weir's definitions stops it.
func TestOperatorAndServer(t *testing.T) {
	c := recorded(t, unchanged)
	more, err := FromObjects([]*unstructured.Unstructured{
		{Object: map[string]any{"apiVersion": "operator.tigera.io/v1", "kind": "Installation", "metadata": map[string]any{"name": "default"}}},
		{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": APIService},
			"spec": map[string]any{"service": map[string]any{"name": "calico-api"}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Operated, c.Served = more.Operated, more.Served
	p := New(c)
	for _, object := range []string{"Installation default", "APIService " + APIService} {
		if f := p.find(object, ""); f == nil || !f.Stops {
			t.Errorf("%s: %+v", object, f)
		}
	}
	// An APIService without a Service is that of CustomResourceDefinitions.
	more, err = FromObjects([]*unstructured.Unstructured{{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": APIService}, "spec": map[string]any{}}}})
	if err != nil || more.Served {
		t.Errorf("%+v %v", more, err)
	}
}
