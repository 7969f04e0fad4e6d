package main

// attacksAgent are the guards of the agent's own sockets and reports.
var attacksAgent = []mutant{
	{fault{"an agent takes its own sockets for a kube-proxy and hands Services away", "internal/kubeproxy/running.go",
		"	first := sockets()\n	if len(first) == 0 {\n		return 0, false\n	}\n	ours := own()\n",
		"	ours := own()\n	first := sockets()\n	if len(first) == 0 {\n		return 0, false\n	}\n"},
		"./internal/kubeproxy", "^TestHostileOwnSocketIsNoKubeProxy$"},
	{fault{"idle connections of one pod occupy the agent's HTTP ports", "internal/httplimit/httplimit.go",
		"	if len(l.open[from]) >= l.perSource {", "	if len(l.open[from]) < 0 {"},
		"./internal/httplimit", "^TestHostileIdleConnections(OfOne|IPv6)$"},
	{fault{"idle connections of many pods occupy the agent's HTTP ports", "internal/httplimit/httplimit.go",
		"	if l.count >= l.total {", "	if l.count < 0 {"},
		"./internal/httplimit", "^TestHostileIdleConnectionsOfMany$"},
	{fault{"counts of removed rules hide the drops that happen now", "internal/agent/status.go",
		"		_, there := s.Rules.Get(d.Rule)\n		return !there\n", "		_, there := s.Rules.Get(d.Rule)\n		return !there && d.Packets == 0\n"},
		"./internal/agent", "^TestHostileDropsOfRulesThatAreGone$"},
	{fault{"a node that changes its data plane is reported as healthy with the one before", "internal/agent/status.go",
		"	if to := a.changing.Load(); to != nil {", "	if to := a.changing.Load(); to != nil && *to == \"\" {"},
		"./internal/agent", "^TestHostileChangeIsReported$"},
}
