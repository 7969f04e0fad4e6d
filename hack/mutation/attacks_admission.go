// SPDX-License-Identifier: Apache-2.0

package main

// attacksAdmission are the guards of who may write what.
var attacksAdmission = append([]mutant{
	{fault: fault{"a tier that is gone cuts off all that its policies selected", "internal/calc/subject/subject.go", "	return there\n", "	return there || true\n"},
		pkg: "./internal/calc", run: "^TestHostileMissingTierCutsNobodyOff$"},
	{fault: fault{"a deleted tier leaves its policies without effect unnoticed", "internal/agent/problems/tiers.go", "there {\n\t\t\treturn", "there || true {\n\t\t\treturn"},
		pkg: "./internal/agent", run: "^TestHostileMissingTierIsSaid$"},
	{fault: fault{"a tier is deleted under its policies", "internal/controller/keeper.go", "		if err != nil || by != \"\" {", "		if err != nil || by != \"\" && u.GetKind() != \"Tier\" {"},
		pkg: "./internal/controller", run: "^TestHostileTierIsKept$"},
	{fault: fault{"a pool is deleted and gone while its pods have addresses of it", "internal/controller/keeper.go", "		if err != nil || by != \"\" {", "		if err != nil || by != \"\" && u.GetKind() != \"IPPool\" {"},
		pkg: "./internal/controller", run: "^TestHostilePoolIsKept$"},
	{fault: fault{"a node keeps a deleted pool for ever by blocks that it goes on to claim", "internal/controller/poolusers.go", " && !b.CreationTimestamp.After(pool.GetDeletionTimestamp().Time)", ""},
		pkg: "./internal/controller", run: "^TestHostilePoolIsNotKeptByNode$"},
	{fault: fault{"a node keeps a deleted pool for ever by an address in the status of an old pod", "internal/controller/poolusers.go", "return !model.Within(reserved, p.Addr)", "return false"},
		pkg: "./internal/controller", run: "^TestHostilePoolIsNotKeptByPodsOfNode$"},
	{fault: fault{"a node keeps a deleted pool for ever by pods that have its reserved addresses later", "internal/controller/poolusers.go", " && !a.created.After(pool.GetDeletionTimestamp().Time)", ""},
		pkg: "./internal/controller", run: "^TestHostilePoolIsNotKeptByPodsOfNode$"},
	{fault: fault{"a namespace that takes no more events keeps what is refused of others' Services from being reported", "internal/controller/refusals.go",
		"			failed[name.Namespace] = true\n			continue\n", "			return err\n"},
		pkg: "./internal/controller", run: "^TestHostileEventsOfOneNamespace$"},
	{fault: fault{"the token of the controller displaces an operator's host endpoint by an automatic one", "internal/model/hostendpoint.go", "return h.Labels[HostEndpointCreatedBy] == HostEndpointCreator", "return false"},
		pkg: "./internal/calc", run: "^TestHostileAutomaticHostEndpoint$"},
	{fault: fault{"a setting of protection that has no effect passes for one that has", "internal/config/table.go",
		`ineffective("wireguardEnabled", "WireguardEnabled", "false", notEncrypted, off...)`, `unsupported("wireguardEnabled", "WireguardEnabled", "false", off...)`},
		pkg: "./internal/config", run: "^TestHostileIneffectiveProtectionIsAProblem$"},
	{fault: fault{"a value that is none replaces a setting in force", "internal/config/config.go", "if good, ok := r.lastGood[f.name]; ok {", "if good, ok := r.lastGood[f.name]; ok && good == s.text {"},
		pkg: "./internal/config", run: "^TestHostileBadValueChangesNothing$"},
	{fault: fault{"metrics that ask for certificates are read without one", "internal/agent/httpserve/metricstls.go", "		l.Ensure(\"\", nil)\n", "		l.Ensure(Address(e.Endpoint), handler)\n"},
		pkg: "./internal/agent/httpserve", run: "^TestHostileMetricsAreNotServedInClear$"},
	{fault: fault{"a container that ends while the API server is away stays away", "deploy/manifests/50-controller.yaml.tmpl", "          valueFrom: {fieldRef: {fieldPath: metadata.name}}\n",
		"          valueFrom: {fieldRef: {fieldPath: metadata.name}}\n        - name: POD_CIDR\n          valueFrom: {configMapKeyRef: {name: weir-config, key: pod_cidr, optional: true}}\n"},
		pkg: "./deploy", run: "^TestHostileOutageHoldsNoContainer$"},
	{fault: fault{"a drain of nodes leaves no controller", "deploy/manifests/50-controller.yaml.tmpl", "  replicas: 2\n", "  replicas: 1\n"},
		pkg: "./deploy", run: "^TestHostileDrainLeavesAController$"},
}, written()...)

// written are the guards that the API server itself holds, in the manifests.
func written() []mutant {
	var out []mutant
	for _, f := range []fault{
		{"a tenant writes a policy into a tier of administrators", "22-tiers.yaml",
			"- expression: request.operation == 'DELETE' || variables.getAfter && (", "- expression: request.operation != 'UPDATE' || variables.getAfter && ("},
		{"a tenant moves a policy into a tier of administrators", "22-tiers.yaml",
			"- expression: request.operation == 'DELETE' || variables.getAfter && (", "- expression: request.operation != 'CREATE' || variables.getAfter && ("},
		{"a tenant moves a policy out of a tier of administrators", "22-tiers.yaml",
			"request.operation == 'CREATE' || request.operation == 'UPDATE' && variables.before == variables.after ||", "request.operation != 'DELETE' ||"},
		{"a tenant deletes a policy of a tier of administrators", "22-tiers.yaml",
			"request.operation == 'CREATE' || request.operation == 'UPDATE' && variables.before == variables.after ||", "request.operation != 'UPDATE' || variables.before == variables.after ||"},
		{"a tenant stages a policy in a tier of administrators", "22-tiers.yaml",
			"      resources: [networkpolicies, globalnetworkpolicies, stagednetworkpolicies, stagedglobalnetworkpolicies]", "      resources: [networkpolicies, globalnetworkpolicies]"},
		{"a writer of one named policy writes others of its tier", "22-tiers.yaml",
			`expression: "variables.name.startsWith(variables.after + '.') ? variables.name : variables.after + '.' + variables.name"`, `expression: "variables.after + '.web'"`},
		{"a built-in tier is deleted", "22-tiers.yaml", "- expression: request.operation != 'DELETE'\n", "- expression: \"true\"\n"},
		{"a built-in tier gets another order or default action", "22-tiers.yaml", "object.spec.order == variables.order", "true"},
		{"encryption is switched on and is not there", "23-settings.yaml", "!object.spec.wireguardEnabled ||", "true ||"},
		{"encryption of IPv6 is switched on and is not there", "23-settings.yaml", "!object.spec.wireguardEnabledV6 ||", "true ||"},
		{"encryption of what nodes themselves exchange is switched on and is not there", "23-settings.yaml", "!object.spec.wireguardHostEncryptionEnabled ||", "true ||"},
		{"a token of a node that names no node writes for every node", "20-admission.yaml", "    expression: request.userInfo.username == \"system:serviceaccount:kube-system:weir-node\"\n",
			"    expression: request.userInfo.username == \"system:serviceaccount:kube-system:weir-node\"\n  - name: names-its-node\n    expression: has(request.userInfo.extra) && \"authentication.kubernetes.io/node-name\" in request.userInfo.extra\n"},
		{"a node writes or deletes objects of another node", "20-admission.yaml", `"variables.subjects.all(s, (`, `"true || variables.subjects.all(s, (`},
		{"a node keeps its objects from being collected when it is gone", "20-admission.yaml", "      request.operation == 'DELETE' ||\n      (has(object.metadata.finalizers)", "      request.operation != '' ||\n      (has(object.metadata.finalizers)"},
		{"the token of a node writes Services and policies and nodes", "10-rbac.yaml",
			"  resources: [namespaces, pods, nodes, services, serviceaccounts]\n  verbs: [get, list, watch]\n", "  resources: [namespaces, pods, nodes, services, serviceaccounts]\n  verbs: [get, list, watch, create]\n"},
		{"the token of the controller creates pods or workloads", "10-rbac.yaml", "  resources: [pods]\n  verbs: [list]\n", "  resources: [pods]\n  verbs: [list, create]\n"},
		{"the token of the controller reads secrets or makes tokens", "10-rbac.yaml", "  resources: [pods]\n  verbs: [list]\n", "  resources: [pods, secrets]\n  verbs: [list]\n"},
		{"the token of the controller changes nodes", "10-rbac.yaml", "  resources: [nodes]\n  verbs: [get, list, watch]\n", "  resources: [nodes]\n  verbs: [get, list, watch, patch]\n"},
		{"the token of the controller writes policies or turns a tier around", "24-controller-limits.yaml", "!(variables.kind == 'tiers' ||", "!(variables.kind == '' ||"},
		{"the token of the controller changes admission or rights", "10-rbac.yaml", "  resources: [felixconfigurations]\n  verbs: [get, create]\n",
			"  resources: [felixconfigurations]\n  verbs: [get, create]\n- apiGroups: [admissionregistration.k8s.io]\n  resources: [mutatingwebhookconfigurations]\n  verbs: [create]\n"},
		{"the token of the controller takes the addresses of a live node away", "24-controller-limits.yaml", "params.metadata.name != (", "params.metadata.name != '-' + ("},
		{"the token of the controller takes the lease of another component", "24-controller-limits.yaml", "object.metadata.name == 'weir-controller'\n", "object.metadata.name != ''\n"},
		{"the token of the controller opens a node by its host endpoint", "24-controller-limits.yaml", "variables.kind != 'hostendpoints' || variables.of", "variables.kind != '' || variables.of"},
		{"the token of the controller gives an automatic host endpoint a name of its choice", "24-controller-limits.yaml", "variables.kind != 'hostendpoints' || request.operation == 'DELETE' ||", "variables.kind != '' ||"},
		{"the token of the controller changes labels, annotations, owners or finalizers of Services", "24-controller-limits.yaml", "variables.kind != 'services' ||", "variables.kind != '' ||"},
		{"the token of the controller makes a first pool beside pools of other names", "24-controller-limits.yaml", "params.metadata.name in ['default', 'default-ipv6']", "params.metadata.name != ''"},
		{"the token of the controller makes a pool or settings of its own mind", "24-controller-limits.yaml", "object.metadata.name in ['default', 'default-ipv6']", "object.metadata.name != ''"},
		{"the token of the controller has the API server hand other requests on to it", "24-controller-limits.yaml", "variables.kind != 'apiservices' ||", "variables.kind != '' ||"},
		{"the token of the controller changes a pool", "24-controller-limits.yaml", "|| variables.kind == 'ippools' && request.operation != 'CREATE')", ")"},
		{"a pool covers loopback, link-local, multicast or all addresses", "25-addresses.yaml", "!variables.special.exists(s,", "!variables.special.exists(s, s == '' &&"},
		{"a pool that covers a node is stored", "25-addresses.yaml", "cidr(object.spec.cidr).containsIP(ip(a.address))", "cidr(object.spec.cidr) == cidr('0.0.0.0/0')"},
		{"a pool gets smaller blocks than nodes have, which then do not count", "25-addresses.yaml", "expression: variables.size <= variables.sizeBefore", "expression: variables.size >= 0"},
		{"a node has a pod of its own, made long ago, ask for a reserved address by annotation", "25-addresses.yaml", "request.userInfo.username.startsWith('system:node:')", "request.userInfo.username == 'system:node:'"},
		{"a node makes a block under the name of another one", "25-addresses.yaml", "cidr(variables.named) == variables.net", "variables.net != cidr('0.0.0.0/0')"},
		{"a node makes a block that is larger than those of the pool", "25-addresses.yaml", " && variables.net.prefixLength() >= variables.size", ""},
		{"a node makes a block that is no network, or one of thousands of addresses", "25-addresses.yaml", "variables.net.masked() == variables.net && variables.net.prefixLength() >= (variables.v4 ? 16 : 112)", "variables.net.prefixLength() >= 0"},
	} {
		f.file = "deploy/manifests/" + f.file
		out = append(out, mutant{fault: f, pkg: "./deploy", run: "^TestHostileAdmission$"})
	}
	return out
}
