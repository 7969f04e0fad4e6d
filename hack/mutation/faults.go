// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// fault is one deliberate mistake: in a file, this text, which is there once, becomes that one.
type fault struct {
	name, file, text, becomes string
}

// faults are the mistakes that the tests must find. Each leaves a tree that builds, and programs
// that load.
var faults = []fault{
	{"look-up 1 forgets networks", "bpf/policy.h",
		"		class = bpf_map_lookup_elem(&weir_peer_cidrs, &pk);", "		return pk.len == 0;"},
	{"look-up 2 forgets what counts for everybody else", "bpf/policy.h",
		"	if (!v && key->peer) {", "	if (!v && key->peer == 1) {"},
	{"single ports are not looked at", "bpf/policy.h",
		"	for (int len = 16; len >= 0; len--) {", "	for (int len = 15; len >= 0; len--) {"},
	{"the source port is not looked at", "bpf/policy.h",
		"	if (w->policy.value.sources) {", "	if (w->policy.value.sources == 0xffff) {"},
	{"other ICMP messages are evaluated as echoes", "bpf/policy.h",
		"	if (apart == ICMP_ONE_WAY)\n		return sport;", "	if (apart == ICMP_ONE_WAY && sport == dport)\n		return sport;"},
	{"an echo has the key of its answer", "bpf/parse.h",
		"	__be16 beyond = bpf_htons((__u16)(bpf_ntohs(id) + query));", "	__be16 beyond = bpf_htons((__u16)(bpf_ntohs(id) + (query == IP_ECHO ? 0 : query)));"},
	{"new labels of a namespace do not reach its pods", "internal/calc/peer/pod_index.go",
		"				collect(&out.byNamespace, g)\n", "				collect(&out.byAccount, g)\n"},
	{"the receiver's policy is not asked when the sender's allows", "bpf/policy.h",
		"b->ingress_set && !(a && a->kind == ADDR_HOST)", "b->ingress_set && !(a && a->kind != ADDR_NODE)"},
	{"an open flow is not evaluated again", "bpf/flow_revalidate.h",
		"		w->fwd.rule = rule;\n		if (ret)\n			return ret;", "		w->fwd.rule = rule;\n		if (ret && !rule)\n			return ret;"},
	{"an open flow is evaluated again in the wrong direction", "bpf/flow_revalidate.h",
		"	if (!(f->flags & FLOW_HAND_ON)) {\n		if (f->flags & FLOW_REPLY)",
		"	if (!(f->flags & FLOW_HAND_ON)) {\n		if (!(f->flags & FLOW_REPLY))"},
	{"what doNotTrack denies goes on to be tracked", "bpf/untracked.h",
		"	if (host_denies(ifindex, which, proto, dport))\n		return UNTRACKED_DENIED;", "	if (host_denies(ifindex, which, proto, dport) && !dport)\n		return UNTRACKED_DENIED;"},
	{"what no rule with doNotTrack is about is not tracked", "bpf/untracked.h",
		"	return w->policy.value.verdict & POLICY_UNDECIDED ? UNTRACKED_NONE : UNTRACKED_ALLOWED;", "	return UNTRACKED_ALLOWED;"},
	{"Pass ends policy", "internal/calc/policy/verdicts.go",
		"				passed = append(passed, taken...)\n			default:", "				decide(taken, verdict{allow: true, rule: r.id})\n			default:"},
	{"what a rule passes on, the rest of its tier still sees", "internal/calc/policy/verdicts.go",
		"				passed = append(passed, taken...)\n			default:", "				passed = append(passed, taken...)\n				continue\n			default:"},
	{"the end of a tier passes", "internal/calc/policy/verdicts.go",
		"		if tier.pass {", "		if true || tier.pass {"},
	{"nobody allows what every tier passes on", "internal/calc/policy/verdicts.go",
		"		decide(open, verdict{allow: !s.denied, rule: s.passedID, on: s.alone && !s.denied})", "		decide(open, verdict{allow: false, rule: s.passedID})"},
	{"what is not to match matches", "internal/calc/peer/atom.go",
		"(c != nil && c.has(x.Atom)) != x.Not", "c != nil && c.has(x.Atom)"},
	{"an ipBlock's except is forgotten", "internal/calc/peer/atoms.go",
		"	return x.newNets([]netip.Prefix{p.CIDR}, p.Except)", "	return x.newNets([]netip.Prefix{p.CIDR}, nil)"},
	{"a named port is every port", "internal/calc/port/port.go",
		"			out = append(out, model.PortRange{Protocol: own.Proto, First: own.Port, Last: own.Port})",
		"			out = append(out, model.PortRange{Protocol: own.Proto, First: 0, Last: 65535})"},
	{"a range of ports lacks its last", "internal/calc/port/spans.go",
		"	for at, end := int(s.First), int(s.Last)+1; at < end; {", "	for at, end := int(s.First), max(int(s.Last), int(s.First)+1); at < end; {"},
	{"a pod's own labels stand in for its namespace's", "internal/calc/peer/expressions.go",
		"	if strings.HasPrefix(key, model.PrefixNamespace) || strings.HasPrefix(key, model.PrefixAccount) {",
		"	if strings.HasPrefix(key, model.PrefixAccount) {"},
	{"the order of policies is their names'", "internal/calc/subject/subject.go",
		"cmp.Compare(a.Order, b.Order), table.CompareNames(a.Name, b.Name),", "table.CompareNames(a.Name, b.Name), cmp.Compare(a.Order, b.Order),"},
	{"a view lacks the pods that Services of other namespaces name", "internal/nodeview/against.go",
		"x.external[a] > 0 || x.foreign(a)", "x.external[a] > 0"},
	{"a view lacks the pods whose address Services ask for", "internal/nodeview/against.go",
		"x.external[a] > 0 || x.foreign(a)", "x.foreign(a)"},
	{"a view lacks what staged policies would ask", "internal/nodeview/node.go",
		"			if !slices.Contains(list, p) {", "			if false && !slices.Contains(list, p) {"},
	{"a view does not follow new labels of namespaces", "internal/nodeview/index.go",
		"		maps.Copy(again, x.byNamespace[name])", "		maps.Copy(again, x.byNamespace[\"no \"+name])"},
	{"a view lacks the pods of a policy that comes", "internal/nodeview/node.go",
		"			for slot := range q.groups.less(n.groups) {", "			for slot := range q.groups.less(q.groups) {"},
	{"an agent takes an action that it does not know for Allow", "internal/fanout/wire/decode_policy.go",
		"	if out.Action = action; !known {", "	if out.Action = action; false && !known {"},
	{"an agent does not look at fields of rules that it does not know", "internal/fanout/wire/reader.go",
		"		if n < 0 || number < ignorable {", "		if n < 0 {"},
	{"a rule that an agent does not understand denies what it can read of it", "internal/fanout/wire/decode_policy.go",
		"	return model.Rule{Name: out.Name, Action: model.Deny}\n", "	out.Action = model.Deny\n	return out\n"},
	{"an agent takes a Service whose source ranges are missing for one without", "internal/fanout/wire/decode_objects.go",
		"		Restricted: !s.Unrestricted,", "		Restricted: !s.Unrestricted && len(s.SourceRanges) > 0,"},
	{"policy changes without a transition", "internal/dataplane/ebpf/tables/policy_transition.go",
		"	if !mixed && (!s.replaced() || len(s.classes) == 0) {", "	if true || !mixed && (!s.replaced() || len(s.classes) == 0) {"},
	{"a policy that cannot be read passes on", "internal/watch/policy_calico.go",
		"		p.Ingress = []model.Rule{{Name: \"invalid\", Action: model.Deny}}", "		p.Ingress = []model.Rule{{Name: \"invalid\", Action: model.Pass}}"},
}

// apply returns a file with the fault in it.
func (f *fault) apply(file string) (string, error) {
	if n := strings.Count(file, f.text); n != 1 {
		return "", fmt.Errorf("the text to change is %d times in %s, and has to be there once: hack/mutation/faults.go follows the source", n, f.file)
	}
	return strings.Replace(file, f.text, f.becomes, 1), nil
}

// program reports whether the fault is one of the eBPF programs, which have to be compiled anew.
func (f *fault) program() bool { return strings.HasPrefix(f.file, "bpf/") }
