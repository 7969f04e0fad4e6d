// SPDX-License-Identifier: Apache-2.0

package goldmane

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/goldmane/api"
)

// kinds of policies, as rules name them.
var kinds = map[string]api.PolicyKind{
	"NetworkPolicy": api.PolicyKind_NetworkPolicy, "NetworkPolicy.projectcalico.org": api.PolicyKind_CalicoNetworkPolicy, "GlobalNetworkPolicy": api.PolicyKind_GlobalNetworkPolicy,
	"StagedNetworkPolicy": api.PolicyKind_StagedNetworkPolicy, "StagedGlobalNetworkPolicy": api.PolicyKind_StagedGlobalNetworkPolicy,
	"StagedKubernetesNetworkPolicy": api.PolicyKind_StagedKubernetesNetworkPolicy, "AdminNetworkPolicy": api.PolicyKind_ClusterNetworkPolicyAdminTier,
	"BaselineAdminNetworkPolicy": api.PolicyKind_ClusterNetworkPolicyBaselineTier, "default-allow": api.PolicyKind_Profile,
}

// baselineTier is that of ClusterNetworkPolicies of the tier Baseline.
const baselineTier = "kube-baseline"

// hitOf is what a rule did; nil = no policy did anything.
func hitOf(r *events.Rule, action api.Action) *api.PolicyHit {
	if r == nil {
		return nil
	}
	h := &api.PolicyHit{Tier: r.Tier, Action: action, RuleIndex: -1}
	policy := func(of *api.PolicyHit, name string) {
		of.Name = name
		if namespace, rest, is := strings.Cut(name, "/"); is {
			of.Namespace, of.Name = namespace, rest
		}
	}
	if r.Kind == "default-deny" {
		first, _, _ := strings.Cut(r.Name, ",") // of several that select the end
		h.Kind = api.PolicyKind_EndOfTier
		h.Trigger = &api.PolicyHit{Tier: r.Tier, RuleIndex: -1}
		policy(h.Trigger, first)
		return h
	}
	h.Kind = kinds[r.Kind]
	if r.Kind == "ClusterNetworkPolicy" {
		h.Kind = api.PolicyKind_ClusterNetworkPolicyAdminTier
		if r.Tier == baselineTier {
			h.Kind = api.PolicyKind_ClusterNetworkPolicyBaselineTier
		}
	}
	policy(h, r.Name)
	if _, rest, is := strings.Cut(r.Detail, "["); is {
		number, _, _ := strings.Cut(rest, "]")
		if n, err := strconv.ParseInt(number, 10, 32); err == nil {
			h.RuleIndex = n
		}
	}
	return h
}

// hitsOf are all that a flow names, what triggered them among them.
func hitsOf(k *api.FlowKey) (out []*api.PolicyHit) {
	for _, h := range slices.Concat(k.GetPolicies().GetEnforcedPolicies(), k.GetPolicies().GetPendingPolicies()) {
		if out = append(out, h); h.GetTrigger() != nil {
			out = append(out, h.GetTrigger())
		}
	}
	return out
}

// filter is what a request wants of flows.
type filter struct {
	of *api.Filter
}

func newFilter(of *api.Filter) (filter, error) {
	for _, n := range []int{len(of.GetSourceNames()), len(of.GetSourceNamespaces()), len(of.GetDestNames()), len(of.GetDestNamespaces()), len(of.GetProtocols()),
		len(of.GetDestPorts()), len(of.GetActions()), len(of.GetPolicies())} {
		if n > mostValues {
			return filter{}, status.Errorf(codes.InvalidArgument, "%d values of a field: %d are allowed", n, mostValues)
		}
	}
	// Later versions of Goldmane filter by more. What is not known would be shown as if it were not
	// asked for.
	strange := len(of.ProtoReflect().GetUnknown()) > 0
	for _, m := range of.GetPolicies() {
		strange = strange || strangeMatch(m)
	}
	if strange {
		return filter{}, errStrange
	}
	return filter{of}, nil
}

var errStrange = status.Error(codes.InvalidArgument, "the filter asks for what this version of the API does not know, such as pending actions, the reporter, or a part of a policy's name")

// strangeMatch reports whether a policy is asked for by messages in the place of texts, as later
// versions do: what they encode begins with the tag of their first field.
func strangeMatch(m *api.PolicyMatch) bool {
	tag := string(protowire.AppendTag(nil, 1, protowire.BytesType))
	return len(m.ProtoReflect().GetUnknown()) > 0 || strings.HasPrefix(m.GetTier(), tag) || strings.HasPrefix(m.GetNamespace(), tag) || strings.HasPrefix(m.GetName(), tag)
}

// noNamespace stands for the namespace of what has none, as clients ask for it.
const noNamespace = "-"

func (f filter) wants(k *api.FlowKey) bool {
	text := func(values []*api.StringMatch, is string) bool {
		return len(values) == 0 || slices.ContainsFunc(values, func(m *api.StringMatch) bool {
			if m.GetType() == api.MatchType_Fuzzy {
				return strings.Contains(strings.ToLower(is), strings.ToLower(m.GetValue()))
			}
			return m.GetValue() == is
		})
	}
	namespace := func(values []*api.StringMatch, is string) bool {
		return text(values, is) || is == "" && text(values, noNamespace)
	}
	of := f.of
	return text(of.GetSourceNames(), k.GetSourceName()) && namespace(of.GetSourceNamespaces(), k.GetSourceNamespace()) && text(of.GetDestNames(), k.GetDestName()) &&
		namespace(of.GetDestNamespaces(), k.GetDestNamespace()) && text(of.GetProtocols(), k.GetProto()) &&
		(len(of.GetDestPorts()) == 0 || slices.ContainsFunc(of.GetDestPorts(), func(m *api.PortMatch) bool { return m.GetPort() == k.GetDestPort() })) &&
		(len(of.GetActions()) == 0 || slices.Contains(of.GetActions(), k.GetAction())) &&
		(len(of.GetPolicies()) == 0 || slices.ContainsFunc(of.GetPolicies(), func(m *api.PolicyMatch) bool {
			return slices.ContainsFunc(hitsOf(k), func(h *api.PolicyHit) bool { return isPolicy(m, h) })
		}))
}

// isPolicy is true where a hit has all that is asked for.
func isPolicy(m *api.PolicyMatch, h *api.PolicyHit) bool {
	return (m.GetKind() == 0 || m.GetKind() == h.GetKind()) && (m.GetTier() == "" || m.GetTier() == h.GetTier()) && (m.GetNamespace() == "" || m.GetNamespace() == h.GetNamespace()) &&
		(m.GetName() == "" || m.GetName() == h.GetName()) && (m.GetAction() == 0 || m.GetAction() == h.GetAction())
}

// encoded is a message as a key of a map.
func encoded(m proto.Message) (string, error) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return string(text), err
}
