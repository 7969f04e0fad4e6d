// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/noeffect"
	"github.com/weir-net/weir/internal/watch/bgp"
)

// checks convert objects as the watch does, by group and kind.
var checks = map[string]func(*unstructured.Unstructured) []weirv1.Problem{
	"networking.k8s.io/NetworkPolicy":                 problemsOfKind(policyKind(model.KindNetworkPolicy, ConvertNetworkPolicy)),
	"projectcalico.org/NetworkPolicy":                 problemsOfKind(policyKind(model.KindCalicoNetworkPolicy, ConvertCalicoPolicy)),
	"projectcalico.org/GlobalNetworkPolicy":           problemsOfKind(policyKind(model.KindGlobalNetworkPolicy, ConvertGlobalNetworkPolicy)),
	"projectcalico.org/StagedNetworkPolicy":           problemsOfKind(stagedKind(model.KindStagedNetworkPolicy, ConvertStagedNetworkPolicy)),
	"projectcalico.org/StagedGlobalNetworkPolicy":     problemsOfKind(stagedKind(model.KindStagedGlobalNetworkPolicy, ConvertStagedGlobalNetworkPolicy)),
	"projectcalico.org/StagedKubernetesNetworkPolicy": problemsOfKind(stagedKind(model.KindStagedKubernetesNetworkPolicy, ConvertStagedKubernetesNetworkPolicy)),
	groupPolicies + "/ClusterNetworkPolicy":           problemsOfKind(policyKind(model.KindClusterNetworkPolicy, ConvertClusterNetworkPolicy)),
	groupPolicies + "/AdminNetworkPolicy":             problemsOfKind(policyKind(model.KindAdminNetworkPolicy, ConvertAdminNetworkPolicy)),
	groupPolicies + "/BaselineAdminNetworkPolicy":     problemsOfKind(policyKind(model.KindBaselineAdminNetworkPolicy, ConvertBaselineAdminNetworkPolicy)),
	"projectcalico.org/Tier":                          problemsOf(typed("Tier", ConvertTier)),
	"projectcalico.org/NetworkSet":                    problemsOf(typed("NetworkSet", ConvertNetworkSet)),
	"projectcalico.org/GlobalNetworkSet":              problemsOf(typed("GlobalNetworkSet", ConvertGlobalNetworkSet)),
	"projectcalico.org/HostEndpoint":                  problemsOf(typed("HostEndpoint", ConvertHostEndpoint)),
	"projectcalico.org/BGPConfiguration":              problemsOf(typed("BGPConfiguration", bgp.ConvertConfiguration)),
	"projectcalico.org/BGPPeer":                       problemsOf(typed("BGPPeer", bgp.ConvertPeer)),
	"projectcalico.org/BGPFilter":                     problemsOf(typed("BGPFilter", bgp.ConvertFilter)),
	"projectcalico.org/EgressGatewayPolicy":           problemsOf(typed("EgressGatewayPolicy", ConvertEgressPolicy)),
	"projectcalico.org/IPPool":                        problemsOf(typed("IPPool", ConvertPool)),
	"projectcalico.org/IPReservation":                 problemsOf(typed("IPReservation", ConvertReservation)),
	"projectcalico.org/KubeControllersConfiguration":  checkKubeControllers,
}

func problemsOfKind[V any](k kind[*unstructured.Unstructured, V]) func(*unstructured.Unstructured) []weirv1.Problem {
	return problemsOf(k.convert)
}

func problemsOf[V any](convert func(*unstructured.Unstructured) (*V, []weirv1.Problem)) func(*unstructured.Unstructured) []weirv1.Problem {
	return func(u *unstructured.Unstructured) []weirv1.Problem {
		_, problems := convert(u)
		return problems
	}
}

// checkKubeControllers names the fields without effect: no agent reads the object.
func checkKubeControllers(u *unstructured.Unstructured) []weirv1.Problem {
	f := newFinding(u.GetKind(), u)
	fields, values := noeffect.FieldsOf(u.GetKind(), u.Object)
	for i, of := range fields {
		f.Add(of.Name(), values[i], "has no effect: "+of.Why, actionRemove)
	}
	templates, _, _ := unstructured.NestedSlice(u.Object, "spec", "controllers", "node", "hostEndpoint", "templates")
	for i := range templates {
		t, _ := templates[i].(map[string]any)
		for _, name := range []string{"interfacePattern", "interfaceSelector"} {
			if text, _ := t[name].(string); text != "" {
				f.Add(fmt.Sprintf("spec.controllers.node.hostEndpoint.templates[%d].%s", i, name), text,
					"is not supported, so the template makes no host endpoint: the names of nodes' interfaces are not known to weir-controller", "name the networks in interfaceCIDRs")
			}
		}
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
	if c := checks[u.GroupVersionKind().Group+"/"+u.GetKind()]; c != nil {
		return c(u)
	}
	return nil
}
