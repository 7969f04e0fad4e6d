// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/noeffect"
	"github.com/weir-net/weir/internal/watch/bgp"
	"github.com/weir-net/weir/internal/watch/parse"
)

// checks convert objects as the watch does, by group and kind, into a batch where that keeps them.
var checks = map[string]func(*unstructured.Unstructured, *Batch) []weirv1.Problem{
	"networking.k8s.io/NetworkPolicy":                 into(policyKind(model.KindNetworkPolicy, ConvertNetworkPolicy)),
	"projectcalico.org/NetworkPolicy":                 into(policyKind(model.KindCalicoNetworkPolicy, ConvertCalicoPolicy)),
	"projectcalico.org/GlobalNetworkPolicy":           into(policyKind(model.KindGlobalNetworkPolicy, ConvertGlobalNetworkPolicy)),
	"projectcalico.org/StagedNetworkPolicy":           into(stagedKind(model.KindStagedNetworkPolicy, ConvertStagedNetworkPolicy)),
	"projectcalico.org/StagedGlobalNetworkPolicy":     into(stagedKind(model.KindStagedGlobalNetworkPolicy, ConvertStagedGlobalNetworkPolicy)),
	"projectcalico.org/StagedKubernetesNetworkPolicy": into(stagedKind(model.KindStagedKubernetesNetworkPolicy, ConvertStagedKubernetesNetworkPolicy)),
	groupPolicies + "/ClusterNetworkPolicy":           into(policyKind(model.KindClusterNetworkPolicy, ConvertClusterNetworkPolicy)),
	groupPolicies + "/AdminNetworkPolicy":             into(policyKind(model.KindAdminNetworkPolicy, ConvertAdminNetworkPolicy)),
	groupPolicies + "/BaselineAdminNetworkPolicy":     into(policyKind(model.KindBaselineAdminNetworkPolicy, ConvertBaselineAdminNetworkPolicy)),
	"projectcalico.org/Tier":                          into(tierKind()),
	"projectcalico.org/NetworkSet":                    into(networkSetKind("NetworkSet", ConvertNetworkSet)),
	"projectcalico.org/GlobalNetworkSet":              into(networkSetKind("GlobalNetworkSet", ConvertGlobalNetworkSet)),
	"projectcalico.org/HostEndpoint":                  into(hostEndpointKind()),
	"projectcalico.org/BGPConfiguration":              problemsOf(typed("BGPConfiguration", bgp.ConvertConfiguration)),
	"projectcalico.org/BGPPeer":                       problemsOf(typed("BGPPeer", bgp.ConvertPeer)),
	"projectcalico.org/BGPFilter":                     problemsOf(typed("BGPFilter", bgp.ConvertFilter)),
	"projectcalico.org/EgressGatewayPolicy":           problemsOf(typed("EgressGatewayPolicy", ConvertEgressPolicy)),
	"projectcalico.org/IPPool":                        problemsOf(typed("IPPool", ConvertPool)),
	"projectcalico.org/IPReservation":                 problemsOf(typed("IPReservation", ConvertReservation)),
	"projectcalico.org/IPAMConfiguration": func(u *unstructured.Unstructured, _ *Batch) []weirv1.Problem {
		_, problems := typed("IPAMConfiguration", ConvertIPAMConfiguration)(u)
		return append(problems, fieldsWithoutEffect(u)...)
	},
	"projectcalico.org/KubeControllersConfiguration": func(u *unstructured.Unstructured, _ *Batch) []weirv1.Problem { return checkKubeControllers(u) },
}

// into converts an object and records it in a batch, as the watch does.
func into[V any](k kind[*unstructured.Unstructured, V]) func(*unstructured.Unstructured, *Batch) []weirv1.Problem {
	return func(u *unstructured.Unstructured, b *Batch) []weirv1.Problem {
		v, problems := k.convert(u)
		k.record(b, parse.NameOf(u), nil, v, nil)
		return problems
	}
}

func problemsOf[V any](convert func(*unstructured.Unstructured) (*V, []weirv1.Problem)) func(*unstructured.Unstructured, *Batch) []weirv1.Problem {
	return func(u *unstructured.Unstructured, _ *Batch) []weirv1.Problem {
		_, problems := convert(u)
		return problems
	}
}

// checkKubeControllers names the fields without effect: no agent reads the object.
func checkKubeControllers(u *unstructured.Unstructured) []weirv1.Problem {
	f := newFinding(u.GetKind(), u)
	f.List = fieldsWithoutEffect(u)
	templates, _, _ := unstructured.NestedSlice(u.Object, "spec", "controllers", "node", "hostEndpoint", "templates")
	for i := range templates {
		t, _ := templates[i].(map[string]any)
		for _, name := range []string{"interfacePattern", "interfaceSelector"} {
			text, _ := t[name].(string)
			if _, err := regexp.Compile(text); err != nil {
				f.Add(fmt.Sprintf("spec.controllers.node.hostEndpoint.templates[%d].%s", i, name), text, "is no regular expression, so the template makes no host endpoint: "+err.Error(), "correct it")
			}
		}
	}
	return f.List
}

// fieldsWithoutEffect names the fields of an object that change nothing.
func fieldsWithoutEffect(u *unstructured.Unstructured) []weirv1.Problem {
	f := newFinding(u.GetKind(), u)
	fields, values := noeffect.FieldsOf(u.GetKind(), u.Object)
	for i, of := range fields {
		f.Add(of.Name(), values[i], "has no effect: "+of.Why, actionRemove)
	}
	return f.List
}

// actionRemove is what to do about what has no effect.
const actionRemove = "remove it, and do not rely on it"

// noEffect reports annotations that change nothing.
func (f *finding) noEffect(kind string, annotations map[string]string) {
	for _, a := range noeffect.Of(kind, annotations) {
		f.Add("metadata.annotations["+a.Name+"]", annotations[a.Name], "has no effect: "+a.Why, actionRemove)
	}
}

// Check returns what of an object is not in force as it is written, as every agent would find it.
// It knows the kinds that are converted one by one; of others it returns nothing.
func Check(u *unstructured.Unstructured) []weirv1.Problem {
	problems, _ := Take(u, &Batch{})
	return problems
}

// Take records an object in a batch as the watch would, if it is a policy or what policies refer
// to: of the kinds of policy, a Tier, NetworkSet, GlobalNetworkSet or HostEndpoint. One that is not
// in force is recorded as gone. known is false of kinds that Check does not know either.
func Take(u *unstructured.Unstructured, b *Batch) (problems []weirv1.Problem, known bool) {
	c := checks[u.GroupVersionKind().Group+"/"+u.GetKind()]
	if c == nil {
		return nil, false
	}
	return c(u, b), true
}
