// SPDX-License-Identifier: Apache-2.0

// Package fields holds that no field of a policy is silently ignored: every field that the API
// server stores has an effect on what the agents compute, or is reported, or is in the list of
// those that need none.
package fields

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/watch"
)

var update = flag.Bool("update", false, "write testdata/fields.txt anew")

// noEffect are the fields that decide nothing, with the reason.
var noEffect = map[string]string{
	"metadata.annotations": "notes for people",
	"performanceHints":     "hints never change what is decided",
}

type object = map[string]any

// converters convert an object of a kind.
var converters = map[string]func(object) (any, []weirv1.Problem, error){
	"NetworkPolicy":                 by(watch.ConvertCalicoPolicy),
	"GlobalNetworkPolicy":           by(watch.ConvertGlobalNetworkPolicy),
	"StagedNetworkPolicy":           by(watch.ConvertStagedNetworkPolicy),
	"StagedGlobalNetworkPolicy":     by(watch.ConvertStagedGlobalNetworkPolicy),
	"StagedKubernetesNetworkPolicy": by(watch.ConvertStagedKubernetesNetworkPolicy),
	"Tier":                          by(watch.ConvertTier),
	"NetworkSet":                    by(watch.ConvertNetworkSet),
	"GlobalNetworkSet":              by(watch.ConvertGlobalNetworkSet),
}

func by[T, V any](convert func(*T) (*V, []weirv1.Problem)) func(object) (any, []weirv1.Problem, error) {
	return func(o object) (any, []weirv1.Problem, error) {
		var v T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &v); err != nil {
			return nil, nil, err
		}
		out, problems := convert(&v)
		return out, problems, nil
	}
}

// sample is a value of a field, and what it must come with to mean something. Both
// are by the field's path inside of spec, or inside of a rule or of an end of one.
type sample struct {
	value any
	with  object
}

var samples = map[string]sample{
	"tier": {value: "sec"}, "order": {value: float64(7)}, "selector": {value: "a == 'b'"}, "namespaceSelector": {value: "c == 'd'"},
	"serviceAccountSelector": {value: "e == 'f'"}, "types[]": {value: []any{"Egress"}}, "policyTypes[]": {value: []any{"Egress"}},
	"applyOnForward": {value: true}, "doNotTrack": {value: true, with: object{"applyOnForward": true}},
	"preDNAT": {value: true, with: object{"applyOnForward": true}}, "performanceHints[]": {value: []any{"AssumeNeededOnEveryNode"}},
	"stagedAction": {value: "Delete"}, "defaultAction": {value: "Pass"}, "nets[]": {value: []any{"10.1.0.0/16"}},

	"domains[]": {value: []any{"*.example.com"}}, "allowedEgressDomains[]": {value: []any{"*.example.com"}},

	"action": {value: "Deny"}, "ipVersion": {value: int64(4)}, "protocol": {value: "TCP"}, "notProtocol": {value: "TCP"},
	"icmp.type": {value: int64(8), with: object{"protocol": "ICMP"}}, "icmp.code": {value: int64(3), with: object{"protocol": "ICMP", "icmp": object{"type": int64(8)}}},
	"notICMP.type": {value: int64(8), with: object{"protocol": "ICMP"}}, "notICMP.code": {value: int64(3), with: object{"protocol": "ICMP", "notICMP": object{"type": int64(8)}}},
	"http.methods[]": {value: []any{"GET"}}, "http.paths[].exact": {value: "/x"}, "http.paths[].prefix": {value: "/x"},
	"metadata.annotations": {value: object{"a": "b"}},

	"notNets[]": {value: []any{"10.1.0.0/16"}}, "notSelector": {value: "a == 'b'"},
	"ports[]": {value: []any{int64(80)}, with: object{"protocol": "TCP"}}, "notPorts[]": {value: []any{int64(80)}, with: object{"protocol": "TCP"}},
	"serviceAccounts.names[]": {value: []any{"x"}}, "serviceAccounts.selector": {value: "a == 'b'"},
	"services.name":      {value: "svc", with: object{"END": object{"services": object{"namespace": "ns"}}}},
	"services.namespace": {value: "ns", with: object{"END": object{"services": object{"name": "svc"}}}},

	"podSelector.matchLabels": {value: object{"a": "b"}}, "namespaceSelector.matchLabels": {value: object{"a": "b"}},
	"ipBlock.cidr": {value: "10.0.0.0/8"}, "ipBlock.except[]": {value: []any{"10.1.0.0/16"}, with: object{"PEER": object{"ipBlock": object{"cidr": "10.0.0.0/8"}}}},
	"ports[].protocol": {value: "UDP"}, "ports[].port": {value: int64(80)}, "ports[].endPort": {value: int64(90), with: object{"PORT": object{"port": int64(80)}}},
}

func init() {
	for _, sel := range []string{"podSelector", "namespaceSelector"} {
		at := sel + ".matchExpressions[]."
		samples[at+"key"] = sample{value: "k", with: object{"EXPR": object{"operator": "Exists", "key": "other"}}}
		samples[at+"operator"] = sample{value: "Exists", with: object{"EXPR": object{"operator": "DoesNotExist", "key": "k"}}}
		samples[at+"values[]"] = sample{value: []any{"v"}, with: object{"EXPR": object{"operator": "In", "key": "k", "values": []any{"w"}}}}
	}
}

// leaves appends the paths of the fields of a schema that have no fields of their own.
func leaves(schema object, path string, out *[]string) {
	switch {
	case schema["properties"] != nil:
		for name, sub := range schema["properties"].(object) {
			leaves(sub.(object), strings.TrimPrefix(path+"."+name, "."), out)
		}
	case schema["items"] != nil:
		leaves(schema["items"].(object), path+"[]", out)
	default:
		*out = append(*out, path)
	}
}

// base is a plain object of a kind.
func base(kind string) object {
	spec := object{}
	rule := func() object { return object{"action": "Allow"} }
	switch kind {
	case "StagedKubernetesNetworkPolicy":
		spec = object{"policyTypes": []any{"Ingress", "Egress"}, "ingress": []any{object{}}, "egress": []any{object{}}}
	case "Tier", "NetworkSet", "GlobalNetworkSet":
	default:
		spec = object{"types": []any{"Ingress", "Egress"}, "ingress": []any{rule()}, "egress": []any{rule()}}
	}
	return object{"kind": kind, "metadata": object{"name": "x", "namespace": "shop"}, "spec": spec}
}

// put sets a field below at, which is reached by steps as in a path; lists have one element. What a
// map has stays.
func put(t *testing.T, at object, path string, value any) {
	head, rest, more := strings.Cut(path, ".")
	name, isList := strings.CutSuffix(head, "[]")
	switch {
	case !more:
		if m, ok := value.(object); ok {
			have, _ := at[name].(object)
			if have == nil {
				have = object{}
			}
			for k, v := range m {
				have[k] = v
			}
			value = have
		}
		at[name] = value
	case isList:
		list, _ := at[name].([]any)
		if len(list) == 0 {
			list = []any{object{}}
			at[name] = list
		}
		put(t, list[0].(object), rest, value)
	default:
		if at[name] == nil {
			at[name] = object{}
		}
		put(t, at[name].(object), rest, value)
	}
}

// split divides a field's path into that of the rule, or of the end or the peer, and the rest,
// which names the sample.
func split(path string) (where, field string) {
	for _, w := range []string{"ingress[].source.", "ingress[].destination.", "egress[].source.", "egress[].destination.",
		"ingress[].from[].", "egress[].to[].", "ingress[].", "egress[]."} {
		if rest, ok := strings.CutPrefix(path, w); ok {
			return w, rest
		}
	}
	return "", path
}

// outcome says what becomes of a field of a kind.
func outcome(t *testing.T, kind, path string) string {
	where, field := split(path)
	s, ok := samples[field]
	if !ok {
		return "NO SAMPLE: give one in the test"
	}
	make := func(with bool) (any, []weirv1.Problem) {
		o := base(kind)
		spec := o["spec"].(object)
		for k, v := range s.with {
			place := where
			switch k {
			case "END", "PEER":
				for sub, x := range v.(object) {
					put(t, spec, where+sub, x)
				}
				continue
			case "PORT":
				for sub, x := range v.(object) {
					put(t, spec, where+"ports[]."+sub, x)
				}
				continue
			case "EXPR":
				for sub, x := range v.(object) {
					put(t, spec, where+strings.SplitAfter(field, "[].")[0]+sub, x)
				}
				continue
			}
			if i := strings.Index(where, "[]."); i >= 0 && !strings.HasSuffix(where, "from[].") && !strings.HasSuffix(where, "to[].") {
				place = where[:i+3] // of the rule
			}
			put(t, spec, place+k, v)
		}
		if with {
			put(t, spec, where+field, s.value)
		}
		v, problems, err := converters[kind](o)
		if err != nil {
			t.Fatalf("%s %s: %v", kind, path, err)
		}
		return v, problems
	}
	without, _ := make(false)
	with, problems := make(true)
	switch {
	case strings.Contains(fmt.Sprint(problems), "denies everything"):
		return "refused, the policy denies everything"
	case len(problems) > 0:
		return "refused"
	case !reflect.DeepEqual(without, with):
		return "in force"
	}
	for f, why := range noEffect {
		if strings.TrimSuffix(field, "[]") == f {
			return "no effect: " + why
		}
	}
	return "SILENTLY IGNORED"
}

// TestEveryFieldIsInForceOrRefused walks the schemas that are installed. Its table is what
// docs/reference/policy.md says in short.
func TestEveryFieldIsInForceOrRefused(t *testing.T) {
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	seen := 0
	for _, u := range objects {
		group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
		if u.GetKind() != "CustomResourceDefinition" || group != "projectcalico.org" || converters[kind] == nil {
			continue
		}
		seen++
		versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
		spec, _, _ := unstructured.NestedMap(versions[0].(object), "schema", "openAPIV3Schema", "properties", "spec")
		var paths []string
		leaves(spec, "", &paths)
		for _, p := range paths {
			what := outcome(t, kind, p)
			lines = append(lines, fmt.Sprintf("%s spec.%s: %s", kind, p, what))
			if strings.ToUpper(what) == what || strings.HasPrefix(what, "NO SAMPLE") {
				t.Errorf("%s spec.%s: %s", kind, p, what)
			}
		}
	}
	if seen != len(converters) {
		t.Errorf("%d kinds are installed, of %d", seen, len(converters))
	}
	slices.Sort(lines)
	text := strings.Join(lines, "\n") + "\n"
	const golden = "testdata/fields.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != text {
		t.Errorf("%s is not what is found (go test ./test/fields -update):\n%s", golden, text)
	}
}
