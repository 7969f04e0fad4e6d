// SPDX-License-Identifier: Apache-2.0

package calico

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/watch"
)

// copied are the kinds that are copied, with their names in projectcalico.org/v3.
var copied = map[string]string{
	"IPPool": "IPPool", "IPReservation": "IPReservation", "IPAMConfig": "IPAMConfiguration",
	"FelixConfiguration": "FelixConfiguration", "KubeControllersConfiguration": "KubeControllersConfiguration",
	"BGPConfiguration": "BGPConfiguration", "BGPPeer": "BGPPeer", "BGPFilter": "BGPFilter",
	"Tier": "Tier", "NetworkPolicy": "NetworkPolicy", "GlobalNetworkPolicy": "GlobalNetworkPolicy",
	"StagedNetworkPolicy": "StagedNetworkPolicy", "StagedGlobalNetworkPolicy": "StagedGlobalNetworkPolicy",
	"StagedKubernetesNetworkPolicy": "StagedKubernetesNetworkPolicy",
	"NetworkSet":                    "NetworkSet", "GlobalNetworkSet": "GlobalNetworkSet", "HostEndpoint": "HostEndpoint",
}

// notCopied are kinds that Weir has no use for: their contents are taken over another way, or are
// about Calico itself.
var notCopied = []string{"IPAMBlock", "IPAMHandle", "BlockAffinity", "ClusterInformation", "CalicoNodeStatus"}

// storedMetadata is the annotation with the labels and annotations of an object of
// projectcalico.org/v3: its object of crd.projectcalico.org/v1 has none of these itself.
const storedMetadata = "projectcalico.org/metadata"

// Copy makes the object of projectcalico.org/v3 out of one of crd.projectcalico.org/v1. It is nil
// for kinds that are not copied. An IPPool is disabled: Weir does not know which of its addresses
// Calico has given.
func Copy(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	kind := copied[u.GetKind()]
	if kind == "" {
		return nil, nil
	}
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": kind}}
	out.SetName(u.GetName())
	out.SetNamespace(u.GetNamespace())
	labels, annotations := u.GetLabels(), u.GetAnnotations()
	if raw := annotations[storedMetadata]; raw != "" {
		var meta struct{ Labels, Annotations map[string]string }
		if err := json.Unmarshal([]byte(raw), &meta); err != nil {
			return nil, fmt.Errorf("read the annotation %s of %s %s: %w", storedMetadata, u.GetKind(), u.GetName(), err)
		}
		labels, annotations = meta.Labels, meta.Annotations
	}
	annotations = maps.Clone(annotations)
	for name := range annotations {
		if name == storedMetadata || name == "kubectl.kubernetes.io/last-applied-configuration" {
			delete(annotations, name)
		}
	}
	out.SetLabels(labels)
	out.SetAnnotations(annotations)
	spec, ok, err := unstructured.NestedMap(u.Object, "spec")
	if err != nil {
		return nil, fmt.Errorf("read the spec of %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	if ok {
		if kind == "IPPool" { // fields of an older API, which repeat others
			delete(spec, "ipip")
			delete(spec, "nat-outgoing")
			spec["disabled"] = true
		}
		out.Object["spec"] = spec
	}
	return out, nil
}

// copies makes them, and says what of each is not in force with Weir as it is written.
func (p *planner) copies() {
	hasDefault := false
	for _, u := range p.Objects {
		out, err := Copy(u)
		if err == nil && p.inPlace && u.GetKind() == "IPPool" {
			out.Object["spec"].(map[string]any)["disabled"] = flag(u, "spec", "disabled")
		}
		switch {
		case err != nil:
			p.stop(u.GetKind()+" "+u.GetName(), "", "", err.Error(), "correct it")
			continue
		case out == nil:
			if !slices.Contains(notCopied, u.GetKind()) {
				p.differs(u.GetKind()+" "+u.GetName(), "", "", "is of a kind that Weir does not have; it is not copied", "")
			}
			continue
		}
		if out.GetKind() == "FelixConfiguration" {
			p.felix(out)
			hasDefault = hasDefault || out.GetName() == "default"
		}
		if out.GetKind() == "IPAMConfiguration" && !flag(out, "spec", "strictAffinity") {
			p.differs("IPAMConfig "+out.GetName(), "spec.strictAffinity", "false", "a node gives addresses of its own blocks alone", "")
			// Weir's admission takes nothing else.
			if err := unstructured.SetNestedField(out.Object, true, "spec", "strictAffinity"); err != nil {
				p.stop("IPAMConfig "+out.GetName(), "spec", "", err.Error(), "correct it")
			}
		}
		for _, problem := range watch.Check(out) {
			p.plan.Findings = append(p.plan.Findings, Finding{Problem: problem})
		}
		p.plan.Copies = append(p.plan.Copies, out)
	}
	if !hasDefault {
		out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration",
			"metadata": map[string]any{"name": "default"}, "spec": map[string]any{}}}
		p.felix(out)
		p.plan.Copies = append(p.plan.Copies, out)
	}
	p.mesh()
	order := func(u *unstructured.Unstructured) string {
		return u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
	}
	slices.SortFunc(p.plan.Copies, func(a, b *unstructured.Unstructured) int { return strings.Compare(order(a), order(b)) })
}

// felix completes a FelixConfiguration by what Calico's DaemonSet sets in the environment, which
// wins over it, and by Calico's defaults where Weir has others.
func (p *planner) felix(u *unstructured.Unstructured) {
	spec, _, _ := unstructured.NestedMap(u.Object, "spec")
	if spec == nil {
		spec = map[string]any{}
	}
	object := "FelixConfiguration " + u.GetName()
	byDefault := u.GetName() == "default"
	known, byEnvironment := map[string]config.Reference{}, map[string]bool{}
	for _, r := range config.All() {
		known[r.Name] = r
		for _, kv := range p.environ {
			name, value, _ := strings.Cut(kv, "=")
			if r.Name == "" || !strings.EqualFold(name, r.Env) || value == "" || ofProbes[r.Name] {
				continue
			}
			byEnvironment[r.Name] = true
			if _, set := spec[r.Name]; set || byDefault && !strings.EqualFold(value, r.Default) {
				spec[r.Name] = typed(r, value)
			}
		}
	}
	if byDefault {
		if _, set := spec["defaultEndpointToHostAction"]; !set && !byEnvironment["defaultEndpointToHostAction"] {
			spec["defaultEndpointToHostAction"] = "Drop" // Felix's default
		}
		if _, set := spec["bpfEnabled"]; !set {
			spec["bpfEnabled"] = false
		}
	}
	u.Object["spec"] = spec
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		value := fmt.Sprint(spec[name])
		r, ok := known[name]
		switch {
		case value == "" || value == byStartup[name] || ok && (r.InForce() || r.Lacks != "" || strings.EqualFold(value, r.Default)):
		case ok:
			p.differs(object, "spec."+name, value, "has no effect with Weir", "")
		default:
			p.differs(object, "spec."+name, value, "is about Felix alone, and has no effect with Weir", "")
		}
	}
	resolver := config.New("", nil, nil)
	resolver.Set("default", spec)
	for _, problem := range resolver.Resolve().Problems {
		problem.Object = object
		p.plan.Findings = append(p.plan.Findings, Finding{Problem: problem})
	}
}

// byStartup is what Calico itself writes into every cluster, and nobody chose.
var byStartup = map[string]string{"logSeverityScreen": "Info", "reportingInterval": "0s"}

// ofProbes are set by both DaemonSets for their own probes.
var ofProbes = map[string]bool{"healthEnabled": true, "healthHost": true, "healthPort": true}

// typed is the value of a variable as a FelixConfiguration has it.
func typed(r config.Reference, value string) any {
	if b, err := strconv.ParseBool(value); err == nil && (r.Default == "true" || r.Default == "false" || r.Name == "bpfEnabled") {
		return b
	}
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return n
	}
	return value
}
