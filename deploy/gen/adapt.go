// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// namespaced are the kinds of projectcalico.org that live in a namespace; controller-gen knows no
// other scope than its default from these types.
var namespaced = []string{"NetworkPolicy", "NetworkSet", "StagedNetworkPolicy", "StagedKubernetesNetworkPolicy"}

// tiered are the kinds of policies that have tiers.
var tiered = []string{"NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy"}

// inForce are the kinds of projectcalico.org that Weir acts on. The API server answers every
// request for another one with a warning, which kubectl shows.
var inForce = []string{"IPPool", "IPReservation", "IPAMConfiguration", "FelixConfiguration", "KubeControllersConfiguration",
	"NetworkPolicy", "GlobalNetworkPolicy", "Tier", "NetworkSet", "GlobalNetworkSet", "HostEndpoint",
	"StagedNetworkPolicy", "StagedGlobalNetworkPolicy", "StagedKubernetesNetworkPolicy",
	"BGPConfiguration", "BGPPeer", "BGPFilter", "EgressGatewayPolicy", "CalicoNodeStatus", "ClusterInformation",
	"IPAMBlock", "IPAMHandle", "BlockAffinity"}

// withStatus are the kinds whose status is written by itself, by those who may.
var withStatus = []string{"CalicoNodeStatus", "KubeControllersConfiguration", "Tier", "IPPool"}

var shortNames = map[string][]string{
	"GlobalNetworkPolicy": {"gnp"}, "NetworkPolicy": {"cnp"}, "GlobalNetworkSet": {"gns"}, "NetworkSet": {"netset"},
	"FelixConfiguration": {"felixconfig", "felixconfigs"}, "BGPConfiguration": {"bgpconfig", "bgpconfigs"},
	"IPAMConfiguration": {"ipamconfig", "ipamconfigs"}, "HostEndpoint": {"hep", "heps"},
	"StagedGlobalNetworkPolicy": {"sgnp"}, "StagedNetworkPolicy": {"snp"}, "StagedKubernetesNetworkPolicy": {"sknp"},
}

// column is a printer column: name, JSON path, type.
type column struct{ name, path, typ string }

var columns = map[string][]column{
	"IPPool": {
		{"CIDR", ".spec.cidr", "string"}, {"VXLAN", ".spec.vxlanMode", "string"}, {"NAT", ".spec.natOutgoing", "boolean"},
		{"Disabled", ".spec.disabled", "boolean"}, {"Selector", ".spec.nodeSelector", "string"},
	},
	"FelixConfiguration": {
		{"ExternalServices", ".spec.bpfExternalServiceMode", "string"}, {"ConnectTime", ".spec.bpfConnectTimeLoadBalancing", "string"},
		{"Age", ".metadata.creationTimestamp", "date"},
	},
	"CalicoNodeStatus": {
		{"Node", ".spec.node", "string"}, {"Classes", ".spec.classes", "string"}, {"Updated", ".status.lastUpdated", "date"},
	},
	"IPReservation":       {{"CIDRs", ".spec.reservedCIDRs", "string"}},
	"Tier":                {{"Order", ".spec.order", "number"}, {"Default", ".spec.defaultAction", "string"}},
	"NetworkPolicy":       {{"Tier", ".spec.tier", "string"}, {"Order", ".spec.order", "number"}, {"Selector", ".spec.selector", "string"}},
	"GlobalNetworkPolicy": {{"Tier", ".spec.tier", "string"}, {"Order", ".spec.order", "number"}, {"Selector", ".spec.selector", "string"}},
}

// adapt puts one generated CustomResourceDefinition right and returns its file name and content.
func adapt(raw []byte) (string, []byte, error) {
	var crd map[string]any
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		return "", nil, err
	}
	group, _, _ := unstructured.NestedString(crd, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd, "spec", "names", "kind")
	plural, _, _ := unstructured.NestedString(crd, "spec", "names", "plural")
	if group == "projectcalico.org" {
		if kind == "ClusterInformation" {
			plural = "clusterinformations"
		}
		if err := adaptCalico(crd, kind, plural); err != nil {
			return "", nil, err
		}
	}
	out, err := yaml.Marshal(crd)
	if err != nil {
		return "", nil, err
	}
	return group + "_" + plural + ".yaml", append([]byte("# Made by deploy/gen; do not edit.\n"), out...), nil
}

func adaptCalico(crd map[string]any, kind, plural string) error {
	scope := "Cluster"
	if slices.Contains(namespaced, kind) {
		scope = "Namespaced"
	}
	crd["metadata"].(map[string]any)["name"] = plural + ".projectcalico.org"
	spec := crd["spec"].(map[string]any)
	spec["scope"] = scope
	names := spec["names"].(map[string]any)
	names["plural"] = plural
	names["categories"] = []any{"calico"}
	if s := shortNames[kind]; s != nil {
		names["shortNames"] = toAny(s)
	}
	version := spec["versions"].([]any)[0].(map[string]any)
	if !slices.Contains(inForce, kind) {
		version["deprecated"] = true
		version["deprecationWarning"] = "projectcalico.org/v3 " + kind + " is stored but not enforced by Weir yet"
	}
	if c := columns[kind]; c != nil {
		list := make([]any, len(c))
		for i, col := range c {
			list[i] = map[string]any{"name": col.name, "jsonPath": col.path, "type": col.typ}
		}
		version["additionalPrinterColumns"] = list
	}
	if slices.Contains(withStatus, kind) {
		version["subresources"] = map[string]any{"status": map[string]any{}}
	}
	if slices.Contains(tiered, kind) {
		version["selectableFields"] = []any{map[string]any{"jsonPath": ".spec.tier"}}
	}
	if kind == "CalicoNodeStatus" { // agents follow the objects of their own nodes
		version["selectableFields"] = []any{map[string]any{"jsonPath": ".spec.node"}}
	}
	schema := version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
	adaptSchema(schema)
	if kind == "Tier" || kind == "IPPool" { // fields of newer servers
		schema["properties"].(map[string]any)["status"] = conditionsStatus()
	}
	return adaptKind(kind, schema["properties"].(map[string]any)["spec"].(map[string]any))
}

// conditionsStatus is a status that has conditions (metav1.Condition) alone.
func conditionsStatus() map[string]any {
	text := func() map[string]any { return map[string]any{"type": "string"} }
	return map[string]any{"type": "object", "properties": map[string]any{"conditions": map[string]any{"type": "array",
		"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
		"items": map[string]any{"type": "object", "required": []any{"type", "status"}, "properties": map[string]any{
			"type": text(), "status": text(), "reason": text(), "message": text(),
			"lastTransitionTime": map[string]any{"type": "string", "format": "date-time"}, "observedGeneration": map[string]any{"type": "integer", "format": "int64"}}}}}}
}

// adaptSchema replaces the inner form of types that are written as a number or a string.
func adaptSchema(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, sub := range v {
			if m, ok := sub.(map[string]any); ok && (isNumOrString(m) || isASNumber(key, m)) {
				v[key] = map[string]any{"x-kubernetes-int-or-string": true}
				continue
			}
			adaptSchema(sub)
		}
	case []any:
		for _, e := range v {
			adaptSchema(e)
		}
	}
}

// isNumOrString recognises numorstring.Port and numorstring.Uint8OrString by their fields.
func isNumOrString(m map[string]any) bool {
	p, ok := m["properties"].(map[string]any)
	if !ok {
		return false
	}
	has := func(names ...string) bool {
		for _, n := range names {
			if p[n] == nil {
				return false
			}
		}
		return len(p) == len(names)
	}
	return has("minPort", "maxPort", "portName") || has("type", "numVal", "strVal")
}

// isASNumber recognises numorstring.ASNumber, which is also written as "64512.1".
func isASNumber(key string, m map[string]any) bool {
	return strings.HasSuffix(strings.ToLower(key), "asnumber") && m["type"] == "integer"
}

// noIPIP is the rule that a pool asks for no IP in IP.
const noIPIP = "!has(self.ipipMode) || self.ipipMode in ['', 'Never']"

func adaptKind(kind string, spec map[string]any) error {
	props, _ := spec["properties"].(map[string]any)
	enum := func(field string, values ...string) error {
		f, ok := props[field].(map[string]any)
		if !ok {
			return fmt.Errorf("%s has no field %s", kind, field)
		}
		f["enum"] = toAny(values)
		return nil
	}
	if err := adaptPolicy(kind, props); err != nil {
		return err
	}
	switch kind {
	case "FelixConfiguration":
		// A field that this version of the types does not have must reach the agent, which reports
		// it.
		spec["x-kubernetes-preserve-unknown-fields"] = true
		// A field of newer servers.
		props["dnsTrustedServers"] = map[string]any{"type": "array", "items": map[string]any{"type": "string", "maxLength": 512}, "maxItems": 256}
		props["dnsExtraTTL"] = map[string]any{"type": "string", "maxLength": 32}
		props["flowLogsFileAggregationKindForAllowed"] = map[string]any{"type": "integer", "minimum": 0, "maximum": 3}
		props["flowLogsFileAggregationKindForDenied"] = map[string]any{"type": "integer", "minimum": 0, "maximum": 3}
		props["egressIPSupport"] = map[string]any{"type": "string", "enum": []any{"Disabled", "EnabledPerNamespace", "EnabledPerNamespaceOrPerPod"}}
		if err := enum("bpfAttachType", "Netkit", "TCX", "TC"); err != nil {
			return err
		}
		return enum("programClusterRoutes", "Enabled", "EnabledIPIPOnly", "EnabledNoEncapOnly", "Disabled")
	case "CalicoNodeStatus":
		if err := limit(props, map[string]any{"minimum": 0, "maximum": 86400}, "updatePeriodSeconds"); err != nil {
			return err
		}
		return limit(props, map[string]any{"enum": []any{"Agent", "BGP", "Routes"}}, "classes", "items")
	case "BGPPeer": // fields of newer servers
		props["keepaliveTime"] = map[string]any{"type": "string"}
		props["failureDetectionMode"] = map[string]any{"type": "string", "enum": []any{"None", "BFDIfDirectlyConnected"}}
		props["restartMode"] = map[string]any{"type": "string", "enum": []any{"GracefulRestart", "LongLivedGracefulRestart"}}
	case "BlockAffinity": // a field of newer servers
		props["type"] = map[string]any{"type": "string"}
	case "IPAMBlock": // a free address is a null, which controller-gen does not know
		return limit(props, map[string]any{"nullable": true}, "allocations", "items")
	case "KubeControllersConfiguration": // a field of newer servers, in the place of interfaceSelector
		return limit(props, map[string]any{"interfacePattern": map[string]any{"type": "string"}},
			"controllers", "properties", "node", "properties", "hostEndpoint", "properties", "templates", "items", "properties")
	case "BGPFilter":
		return adaptFilter(props)
	case "NetworkSet", "GlobalNetworkSet": // a field of newer servers
		props["allowedEgressDomains"] = domainNames()
	case "IPAMConfiguration":
		props["autoAllocateBlocks"] = map[string]any{"type": "boolean"}
		props["kubeVirtVMAddressPersistence"] = map[string]any{"type": "string", "enum": []any{"Enabled", "Disabled"}} // a field of newer servers
		delete(spec, "required")
	case "IPPool":
		spec["x-kubernetes-validations"] = []any{
			map[string]any{"rule": "self.cidr == oldSelf.cidr", "message": "a pool keeps its cidr; make another pool"},
			map[string]any{"rule": noIPIP + " || !has(self.vxlanMode) || self.vxlanMode in ['', 'Never']", "message": "a pool has ipipMode or vxlanMode, not both: set one of them to Never"},
			map[string]any{"rule": noIPIP + " || !self.cidr.contains(':')", "message": "ipipMode is for pools of IPv4: IP in IP carries nothing else"},
		}
		if err := enum("vxlanMode", "", "Never", "Always", "CrossSubnet"); err != nil {
			return err
		}
		return enum("ipipMode", "", "Never", "Always", "CrossSubnet")
	}
	return nil
}

// adaptPolicy says in the schema of a policy which values its fields may have, where a schema can.
func adaptPolicy(kind string, props map[string]any) error {
	if strings.HasPrefix(kind, "Staged") {
		if err := limit(props, map[string]any{"enum": []any{"Set", "Delete", "Learn", "Ignore"}}, "stagedAction"); err != nil {
			return err
		}
	}
	directions := map[string]any{"enum": []any{"Ingress", "Egress"}}
	switch kind {
	case "StagedKubernetesNetworkPolicy":
		return limit(props, directions, "policyTypes", "items")
	case "NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy":
		if err := limit(props, directions, "types", "items"); err != nil {
			return err
		}
	case "Profile":
	default:
		return nil
	}
	for _, dir := range []string{"ingress", "egress"} {
		for _, end := range []string{"source", "destination"} { // a field of newer servers
			if kind == "Profile" {
				break
			}
			if err := limit(props, map[string]any{"domains": domainNames()}, dir, "items", "properties", end, "properties"); err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
		}
		for _, l := range []struct {
			values map[string]any
			path   []string
		}{
			{map[string]any{"enum": []any{"Allow", "Deny", "Log", "Pass"}}, []string{"action"}},
			{map[string]any{"enum": []any{4, 6}}, []string{"ipVersion"}},
			{map[string]any{"minimum": 0, "maximum": 254}, []string{"icmp", "properties", "type"}},
			{map[string]any{"minimum": 0, "maximum": 255}, []string{"icmp", "properties", "code"}},
			{map[string]any{"minimum": 0, "maximum": 254}, []string{"notICMP", "properties", "type"}},
			{map[string]any{"minimum": 0, "maximum": 255}, []string{"notICMP", "properties", "code"}},
		} {
			if err := limit(props, l.values, append([]string{dir, "items", "properties"}, l.path...)...); err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
		}
	}
	return nil
}

// domainNames is a list of domain names and of wildcards; which these are says the admission
// policy, with the name of the field.
func domainNames() map[string]any {
	return map[string]any{"type": "array", "maxItems": 1024, "items": map[string]any{"type": "string", "maxLength": 254}}
}

// limit adds keywords to the schema of a field.
func limit(props map[string]any, keywords map[string]any, path ...string) error {
	at := props
	for _, p := range path {
		next, ok := at[p].(map[string]any)
		if !ok {
			return fmt.Errorf("there is no %s", strings.Join(path, "."))
		}
		at = next
	}
	maps.Copy(at, keywords)
	return nil
}

func toAny(list []string) []any {
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}
