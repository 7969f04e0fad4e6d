// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/fanout/names"
	storenames "github.com/weir-net/weir/internal/flowstore/names"
)

// podOf returns what a workload's pods are like, and their first container with its environment.
func podOf(t *testing.T, o Options, kind, name string) (pod, container map[string]any, env map[string]string) {
	t.Helper()
	pod, _, _ = unstructured.NestedMap(find(t, o, kind, name).Object, "spec", "template", "spec")
	container = pod["containers"].([]any)[0].(map[string]any)
	env = map[string]string{}
	for _, e := range container["env"].([]any) {
		if value, ok := e.(map[string]any)["value"]; ok {
			env[e.(map[string]any)["name"].(string)] = value.(string)
		}
	}
	return pod, container, env
}

func TestFanOutOption(t *testing.T) {
	for fanOut, minNodes := range map[string]string{"auto": "", "never": "never", "always": "0"} {
		o := Defaults()
		o.FanOut = fanOut
		_, _, agent := podOf(t, o, "DaemonSet", "weir-node")
		_, _, controller := podOf(t, o, "Deployment", "weir-controller")
		if agent["WEIR_FANOUT"] != fanOut || controller["FANOUT_MIN_NODES"] != minNodes {
			t.Errorf("%s: the agent has %q, the controller %q", fanOut, agent["WEIR_FANOUT"], controller["FANOUT_MIN_NODES"])
		}
		// Of all three it is: what is installed with one option is removed with another.
		replicas, named, _ := unstructured.NestedFieldNoCopy(find(t, o, "Deployment", names.Name).Object, "spec", "replicas")
		if named {
			t.Errorf("%s: an apply would set %v replicas", fanOut, replicas)
		}
		var rights []string
		for _, r := range rulesOf(t, o, "ClusterRole", "weir-node") {
			rule := r.(map[string]any)
			for _, resource := range rule["resources"].([]any) {
				for _, verb := range rule["verbs"].([]any) {
					rights = append(rights, fmt.Sprint(resource, " ", verb))
				}
			}
		}
		slices.Sort(rights)
		// Those of projectcalico.org that the agent writes for clients have names that it knows; of
		// the ClusterInformations it may follow the one named default.
		want := []string{"blockaffinities create", "blockaffinities get", "blockaffinities update", "caliconodestatuses list", "caliconodestatuses watch", "caliconodestatuses/status patch",
			"clusterinformations list", "clusterinformations watch", "events create", "events patch", "ipamblocks create", "ipamblocks create", "ipamblocks delete", "ipamblocks get", "ipamblocks get", "ipamblocks list", "ipamblocks update", "ipamblocks update",
			"ipamhandles create", "ipamhandles get", "ipamhandles update", "namespaces get", "nodes get", "nodestatuses create", "nodestatuses patch", "pods get"}
		if got := slices.Equal(rights, want); got != (fanOut == "always") {
			t.Errorf("%s: agents have the rights %v", fanOut, rights)
		}
		for namespace, slices := range map[string]string{Namespace: names.Slice + " " + names.Slice6, "default": "kubernetes"} {
			if got := readSlices(t, o, namespace); got != slices {
				t.Errorf("%s: agents read the EndpointSlices %q of %s", fanOut, got, namespace)
			}
		}
	}
}

// Agents that read the API server in turns have the rights of those that always do.
func TestFanOutLastResort(t *testing.T) {
	for _, fanOut := range []string{"auto", "always"} {
		o := Defaults()
		o.FanOut, o.FanOutLastResort = fanOut, true
		_, _, env := podOf(t, o, "DaemonSet", "weir-node")
		if env["WEIR_FANOUT"] != fanOut || env["WEIR_FANOUT_LAST_RESORT"] != "true" {
			t.Errorf("%s: the agent has %v", fanOut, env)
		}
		if got, want := rulesOf(t, o, "ClusterRole", "weir-node"), rulesOf(t, Defaults(), "ClusterRole", "weir-node"); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: agents have the rights %v, want %v", fanOut, got, want)
		}
	}
	_, _, env := podOf(t, Defaults(), "DaemonSet", "weir-node")
	if _, set := env["WEIR_FANOUT_LAST_RESORT"]; set {
		t.Error("it is not off by default")
	}
	o := Defaults()
	o.FanOut, o.FanOutLastResort = "never", true
	if err := o.Validate(); err == nil {
		t.Error("taken with never")
	}
}

// readSlices are the EndpointSlices that agents may read by name in a namespace.
func readSlices(t *testing.T, o Options, namespace string) string {
	t.Helper()
	objects, err := Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range objects {
		if u.GetKind() != "Role" || u.GetName() != "weir-node" || u.GetNamespace() != namespace {
			continue
		}
		rules, _, _ := unstructured.NestedSlice(u.Object, "rules")
		for _, r := range rules {
			named, _, _ := unstructured.NestedStringSlice(r.(map[string]any), "resourceNames")
			got = append(got, named...)
		}
	}
	return strings.Join(got, " ")
}

// The manifests and the programs call things the same.
func TestFanOutNames(t *testing.T) {
	deployment := find(t, Defaults(), "Deployment", names.Name)
	pod, container, _ := podOf(t, Defaults(), "Deployment", names.Name)
	label, _, _ := unstructured.NestedString(deployment.Object, "spec", "template", "metadata", "labels", "k8s-app")
	if label != names.Name || pod["serviceAccountName"] != names.Name || pod["hostNetwork"] != true {
		t.Errorf("label %q, service account %v, network of the host %v", label, pod["serviceAccountName"], pod["hostNetwork"])
	}
	for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		get, _, _ := unstructured.NestedMap(container, probe, "httpGet")
		if addr := net.JoinHostPort(fmt.Sprint(get["host"]), fmt.Sprint(get["port"])); addr != names.HealthAddr {
			t.Errorf("%s asks at %s", probe, addr)
		}
	}
	agent, _, _ := podOf(t, Defaults(), "DaemonSet", "weir-node")
	tokens := map[any]any{}
	for _, v := range agent["volumes"].([]any) {
		sources, _, _ := unstructured.NestedSlice(v.(map[string]any), "projected", "sources")
		for _, source := range sources {
			if token, ok := source.(map[string]any)["serviceAccountToken"].(map[string]any); ok {
				tokens[token["path"]] = token["audience"]
			}
		}
	}
	if len(tokens) != 3 || tokens["fanout-token"] != names.ServerName || tokens["flows-token"] != storenames.ServerName {
		t.Errorf("agents have the tokens %v", tokens)
	}
	limits, _, _ := unstructured.NestedSlice(find(t, Defaults(), "ValidatingAdmissionPolicy", "weir-controller-objects").Object, "spec", "validations")
	var text string
	for _, v := range limits {
		text += v.(map[string]any)["expression"].(string)
	}
	for _, want := range []string{"object.metadata.name == '" + names.Name + "'", "['" + names.Slice + "', '" + names.Slice6 + "']", fmt.Sprint("p.port == ", names.Port)} {
		if !strings.Contains(text, want) {
			t.Errorf("admission does not have %s", want)
		}
	}
}

// The loss or the drain of a node leaves replicas, where there are two nodes.
func TestFanOutIsSpread(t *testing.T) {
	deployment := find(t, Defaults(), "Deployment", names.Name).Object
	affinity, _, _ := unstructured.NestedMap(deployment, "spec", "template", "spec", "affinity", "podAntiAffinity")
	if affinity["preferredDuringSchedulingIgnoredDuringExecution"] == nil || affinity["requiredDuringSchedulingIgnoredDuringExecution"] != nil {
		t.Errorf("anti-affinity %v", affinity)
	}
	budget := find(t, Defaults(), "PodDisruptionBudget", names.Name).Object
	got, _, _ := unstructured.NestedStringMap(budget, "spec", "selector", "matchLabels")
	most, _, _ := unstructured.NestedFieldNoCopy(budget, "spec", "maxUnavailable")
	rolling, _, _ := unstructured.NestedFieldNoCopy(deployment, "spec", "strategy", "rollingUpdate", "maxUnavailable")
	if len(got) != 1 || got["k8s-app"] != names.Name || fmt.Sprint(most) != "1" || fmt.Sprint(rolling) != "1" {
		t.Errorf("the budget is %v for %v, a rollout takes %v", most, got, rolling)
	}
}

func rulesOf(t *testing.T, o Options, kind, name string) []any {
	t.Helper()
	rules, _, _ := unstructured.NestedSlice(find(t, o, kind, name).Object, "rules")
	return rules
}

// The fan-out reads what agents read by themselves, and nothing else.
func TestFanOutReadsWhatAgentsRead(t *testing.T) {
	// Each agent follows by itself what it writes of its node, and whether the datastore is locked.
	itself := []string{"[projectcalico.org]caliconodestatuses<nil> [list watch]", "[projectcalico.org]ipamblocks<nil> [watch]", "[projectcalico.org]clusterinformations[default] [list watch]"}
	reads := func(name string) []string {
		var out []string
		for _, r := range rulesOf(t, Defaults(), "ClusterRole", name) {
			rule := r.(map[string]any)
			verbs, _, _ := unstructured.NestedStringSlice(rule, "verbs")
			resources, _, _ := unstructured.NestedStringSlice(rule, "resources")
			for _, resource := range resources {
				read := fmt.Sprint(rule["apiGroups"], resource, rule["resourceNames"], verbs[:min(3, len(verbs))])
				if slices.Contains(verbs, "watch") && !slices.Contains(itself, read) {
					out = append(out, read)
				}
			}
		}
		slices.Sort(out)
		return out
	}
	agent, fanOut := reads("weir-node"), reads("weir-fanout")
	if len(agent) < 20 || !slices.Equal(agent, fanOut) {
		t.Errorf("agents read\n%v\nthe fan-out\n%v", agent, fanOut)
	}
}
