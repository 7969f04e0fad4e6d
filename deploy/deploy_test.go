// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// deploy/weir.yaml is what `weir install --dry-run` prints.
func TestCommittedIsRendered(t *testing.T) {
	want, err := Render(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("weir.yaml")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("deploy/weir.yaml is not the rendered one (%v): run go run ./cmd/weir install --dry-run > deploy/weir.yaml", err)
	}
}

func find(t *testing.T, o Options, kind, name string) *unstructured.Unstructured {
	t.Helper()
	objects, err := Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		if u.GetKind() == kind && u.GetName() == name {
			return u
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

func TestOptionsTakeEffect(t *testing.T) {
	o := Options{Image: "example.com/weir:v1", PodCIDR: "10.1.0.0/16", VXLANMode: "Always", APIServerHost: "fd00::1", APIServerPort: "6443", FanOut: "auto"}
	data, _, _ := unstructured.NestedStringMap(find(t, o, "ConfigMap", "weir-config").Object, "data")
	for k, want := range map[string]string{"pod_cidr": "10.1.0.0/16", "vxlan_mode": "Always", "kubernetes_service_host": "fd00::1", "kubernetes_service_port": "6443"} {
		if data[k] != want {
			t.Errorf("%s = %q, want %q", k, data[k], want)
		}
	}
	text, err := Render(o)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "image: example.com/weir:v1"); n != 5 {
		t.Errorf("the image is named %d times, want 5", n)
	}
	data, _, _ = unstructured.NestedStringMap(find(t, Defaults(), "ConfigMap", "weir-config").Object, "data")
	if _, ok := data["kubernetes_service_host"]; ok {
		t.Error("an address of the API server is made up")
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for what, change := range map[string]func(*Options){
		"image":               func(o *Options) { o.Image = "x\n  evil: true" },
		"pod CIDR, host bits": func(o *Options) { o.PodCIDR = "10.1.0.1/16" },
		"pod CIDR, small":     func(o *Options) { o.PodCIDR = "10.1.0.0/27" },
		"pod CIDR, none":      func(o *Options) { o.PodCIDR = "" },
		"pod CIDR, small 6":   func(o *Options) { o.PodCIDR = "10.1.0.0/16,fd00::/123" },
		"pod CIDR, twice":     func(o *Options) { o.PodCIDR = "10.1.0.0/16,10.2.0.0/16" },
		"pod CIDR, three":     func(o *Options) { o.PodCIDR = "10.1.0.0/16,fd00::/56,fd01::/56" },
		"pod CIDR, comma":     func(o *Options) { o.PodCIDR = "10.1.0.0/16," },
		"fan-out":             func(o *Options) { o.FanOut = "on" },
		"fan-out, none":       func(o *Options) { o.FanOut = "" },
		"mode":                func(o *Options) { o.VXLANMode = "never" },
		"port":                func(o *Options) { o.APIServerHost, o.APIServerPort = "a", "70000" },
		"host without port":   func(o *Options) { o.APIServerHost = "a" },
	} {
		o := Defaults()
		change(&o)
		if _, err := Render(o); err == nil {
			t.Errorf("%s: %+v was rendered", what, o)
		}
	}
}

// In an upgrade the new agent of a node starts before the one before is ended, so it must not ask
// for ports of the node that that one has.
func TestAgentsOverlap(t *testing.T) {
	spec := find(t, Defaults(), "DaemonSet", "weir-node").Object["spec"].(map[string]any)
	rolling, _, _ := unstructured.NestedMap(spec, "updateStrategy", "rollingUpdate")
	if rolling["maxSurge"] != "10%" || fmt.Sprint(rolling["maxUnavailable"]) != "0" || spec["minReadySeconds"] != nil {
		t.Errorf("rolling update %v, minReadySeconds %v", rolling, spec["minReadySeconds"])
	}
	containers, _, _ := unstructured.NestedSlice(spec, "template", "spec", "containers")
	for _, c := range containers {
		if ports := c.(map[string]any)["ports"]; ports != nil {
			t.Errorf("container %s asks for ports of the node: %v", c.(map[string]any)["name"], ports)
		}
	}
}

// TestSELinux: what uses the node's paths has a type that may, where SELinux is in force.
func TestSELinux(t *testing.T) {
	o := Defaults()
	o.WireGuardGo = true
	for _, name := range []string{"weir-node", "weir-bgp", "weir-wireguard"} {
		spec := find(t, o, "DaemonSet", name).Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		if got, _, _ := unstructured.NestedString(spec, "securityContext", "seLinuxOptions", "type"); got != "spc_t" {
			t.Errorf("%s has the type %q", name, got)
		}
	}
}

// The agent writes only below these paths of a node, and listens on loopback only.
func TestAgentIsConfined(t *testing.T) {
	ds := find(t, Defaults(), "DaemonSet", "weir-node")
	spec := ds.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	var paths []string
	for _, v := range spec["volumes"].([]any) {
		if p, ok, _ := unstructured.NestedString(v.(map[string]any), "hostPath", "path"); ok {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	want := []string{"/etc/cni/net.d", "/opt/cni/bin", "/run/weir", "/sys/fs/bpf", "/sys/fs/cgroup", "/var/lib/weir"}
	if !slices.Equal(paths, want) {
		t.Errorf("host paths %v, want %v", paths, want)
	}
	for _, key := range []string{"containers", "initContainers"} {
		for _, c := range spec[key].([]any) {
			m := c.(map[string]any)
			if ro, _, _ := unstructured.NestedBool(m, "securityContext", "readOnlyRootFilesystem"); !ro {
				t.Errorf("%s may write to its root file system", m["name"])
			}
			for _, probe := range []string{"livenessProbe", "readinessProbe"} {
				if h, ok, _ := unstructured.NestedString(m, probe, "httpGet", "host"); ok && h != "127.0.0.1" {
					t.Errorf("%s asks %s", probe, h)
				}
			}
		}
	}
	if spec["hostPID"] == true || spec["hostIPC"] == true {
		t.Error("the agent sees the host's processes")
	}
}

// No rule grants a wildcard, a secret other than that of Weir's own authorities, or the right to
// give oneself more rights.
func TestRightsAreNarrow(t *testing.T) {
	for _, fanOut := range []string{"auto", "never", "always"} {
		o := Defaults()
		o.FanOut = fanOut
		objects, err := Objects(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range objects {
			if k := u.GetKind(); k != "ClusterRole" && k != "Role" {
				continue
			}
			rules, _, _ := unstructured.NestedSlice(u.Object, "rules")
			for _, r := range rules {
				rightIsNarrow(t, u, r.(map[string]any))
			}
		}
	}
}

func rightIsNarrow(t *testing.T, of *unstructured.Unstructured, rule map[string]any) {
	t.Helper()
	names, _, _ := unstructured.NestedStringSlice(rule, "resourceNames")
	verbs, _, _ := unstructured.NestedStringSlice(rule, "verbs")
	if slices.Equal(names, []string{"weir-peer-ca"}) && (of.GetName() == "weir-controller" || of.GetName() == "weir-fanout" && slices.Equal(verbs, []string{"get"})) {
		return
	}
	for _, key := range []string{"apiGroups", "resources", "verbs"} {
		values, _, _ := unstructured.NestedStringSlice(rule, key) // a rule of URLs has verbs alone
		for _, v := range values {
			if slices.Contains([]string{"*", "secrets", "serviceaccounts/token", "escalate", "bind", "impersonate", "pods/exec"}, v) {
				t.Errorf("%s %s grants %v", of.GetKind(), of.GetName(), v)
			}
		}
	}
}

func TestParse(t *testing.T) {
	got, err := Parse([]byte("# a comment\n---\n---\nkind: A\napiVersion: v1\nmetadata: {name: a}\n---\nkind: List\napiVersion: v1\nitems:\n- {kind: B, apiVersion: v1}\n- {kind: C, apiVersion: v1}\n"))
	if err != nil || len(got) != 3 || got[2].GetKind() != "C" {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"kind: A", "a: [", "kind: List\napiVersion: v1\nitems: [1]", "- a"} {
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
