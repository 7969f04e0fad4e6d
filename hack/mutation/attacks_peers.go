// SPDX-License-Identifier: Apache-2.0

package main

const (
	peerauthPackage = "./internal/peerauth"
	relayPackage    = "./internal/relay"
	reviewFile      = "internal/peerauth/review.go"
	frontProxyFile  = "internal/peerauth/frontproxy.go"
	relayFile       = "internal/relay/relay.go"
	agentsFile      = "internal/relay/agents/agents.go"
	relayAPIFile    = "internal/relay/api.go"
	byAPIServer     = "^TestHostileLiveByAPIServer$"
)

// attacksPeers are the guards of who asks the controller, and of who answers for a node.
var attacksPeers = []mutant{
	{fault: fault{"the key of Weir's authority makes certificates for other servers", "internal/peerauth/authorities.go",
		"PermittedDNSDomains: []string{domain}, PermittedDNSDomainsCritical: true,", ""}, pkg: peerauthPackage, run: "^TestHostileAuthorityForOtherNames$"},
	{fault: fault{"an agent gets a certificate by which it answers hubble-relay as another node", "internal/peerauth/certify.go",
		"	name := names[0]\n	r, err := x509.ParseCertificateRequest(request)", "	name := names[0]\n	r, err := x509.ParseCertificateRequest(request)\n	if err == nil {\n		names = append(names, r.DNSNames...)\n	}"},
		pkg: "./internal/peerauth/nodecert", run: "^TestHostileRequests$"},
	{fault: fault{"a token that has expired, or whose pod is gone, answers for a node", reviewFile, "	case !s.Authenticated:", "	case !s.Authenticated && s.User.Username == \"\":"},
		pkg: peerauthPackage, run: "^TestHostileTokens$"},
	{fault: fault{"a token for the API server that was stolen answers for a node", reviewFile,
		"!slices.Contains(s.Audiences, r.audience):", "slices.Equal(s.Audiences, nil):"}, pkg: peerauthPackage, run: "^TestHostileTokens$"},
	{fault: fault{"an API server that knows no audiences takes every token for an agent's", reviewFile,
		"!slices.Contains(s.Audiences, r.audience):", "len(s.Audiences) > 0 && !slices.Contains(s.Audiences, r.audience):"}, pkg: peerauthPackage, run: "^TestHostileTokens$"},
	{fault: fault{"a tenant's service account answers for a node", reviewFile, "	case s.User.Username != r.user:", "	case s.User.Username == \"\":"},
		pkg: peerauthPackage, run: "^TestHostileTokens$"},
	{fault: fault{"a token of the agents' account that names no node answers for every node", reviewFile,
		"	case len(nodes) != 1 || nodes[0] == \"\" || ", "	case len(nodes) == 0:\n		nodes = []string{\"n1\"}\n	case "}, pkg: peerauthPackage, run: "^TestHostileTokens$"},
	{fault: fault{"one caller with many wrong tokens keeps the API server busy and agents waiting", reviewFile,
		"	if _, is := r.busy[from]; is || ", "	if "}, pkg: peerauthPackage, run: "^TestHostileManyTokens$"},
	{fault: fault{"a pod asks the controller as a user that it names, without a certificate", frontProxyFile,
		"		return errors.New(\"it came without a certificate\")\n", "		return nil\n"}, pkg: peerauthPackage, run: "^TestHostileForgedUsers$"},
	{fault: fault{"a host asks the controller as a user that it names, with a certificate of its own authority", frontProxyFile,
		"KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {", "KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); errors.As(err, new(x509.CertificateInvalidError)) {"},
		pkg: peerauthPackage, run: "^TestHostileForgedUsers$"},
	{fault: fault{"a user with a certificate of the front proxy's authority asks as another user", frontProxyFile,
		"	if len(t.names) > 0 && !slices.Contains(", "	if len(t.names) > 1 && !slices.Contains("}, pkg: peerauthPackage, run: "^TestHostileForgedUsers$"},
	{fault: fault{"an expired certificate of the front proxy is used to ask as any user", frontProxyFile,
		"CurrentTime: now, ", "CurrentTime: shown[0].NotBefore, "}, pkg: peerauthPackage, run: "^TestHostileForgedUsers$"},
	{fault: fault{"a server's certificate of the front proxy's authority is used to ask as any user", frontProxyFile,
		"{x509.ExtKeyUsageClientAuth}", "{x509.ExtKeyUsageAny}"}, pkg: peerauthPackage, run: "^TestHostileForgedUsers$"},
	{fault: fault{"users whose certificates are of the front proxy's authority ask as anybody", frontProxyFile,
		"	if len(t.names) == 0 && strings", "	if len(t.names) < 0 && strings"}, pkg: peerauthPackage, run: "^TestHostileSharedFrontProxy$"},
	{fault: fault{"a user without the right asks the controller", relayAPIFile, "	if !may {", "	if !may && user.Name == \"\" {"}, pkg: relayPackage, run: "^TestHostileQuestions$"},
	{fault: fault{"a viewer asks for an agent's token", "internal/relay/live/live.go", `"/why": "create", keyQuestion`, `"/why": "create", "/token": "get", keyQuestion`}, pkg: relayPackage, run: "^TestHostileQuestions$"},
	{fault: fault{"a user who may ask about one node asks the store of flow records about all", relayAPIFile, "Subresource: question[1:], Name: node,", "Subresource: question[1:], Name: \"n1\","},
		pkg: relayPackage, run: "^TestHostileStore$"},
	{fault: fault{"a compromised node answers as the store of flow records", relayFile, "Reviewer: cfg.StoreReviewer,", "Reviewer: cfg.Reviewer,"}, pkg: relayPackage, run: "^TestHostileStore$"},
	{fault: fault{"the token of the store of flow records answers for a node", relayFile, "r.agents = agents.New(agents.Config{Log: cfg.Log, Reviewer: cfg.Reviewer,",
		"r.agents = agents.New(agents.Config{Log: cfg.Log, Reviewer: cfg.StoreReviewer,"}, pkg: relayPackage, run: "^TestHostileStore$"},
	{fault: fault{"a compromised node's flow records crash their store, or take its memory", "internal/flows/wire/convert.go", "if !in(r.From, len(b.Peers)) || ", "if "},
		pkg: "./internal/flows/wire", run: "^TestHostileBatches$"},
	{fault: fault{"a compromised node answers for another node", agentsFile,
		"	peer, err := s.cfg.Reviewer.Review(req.Context(), sourceOf(req), tunnel.Token(req))\n", "	peer, err := s.cfg.Reviewer.Review(req.Context(), sourceOf(req), tunnel.Token(req))\n	peer.Node = \"n1\"\n"},
		pkg: relayPackage, run: "^TestHostileNodeForAnother$"},
	{fault: fault{"a node goes on answering when its agent's pod is gone", agentsFile,
		"			case err == nil:\n				failed = 0\n", "			case err == nil || errors.Is(err, peerauth.ErrToken):\n				failed = 0\n"},
		pkg: relayPackage, run: "^TestHostileTokenThatCountsNoLonger$"},
	{fault: fault{"a connected agent changes to another node's token", agentsFile, "	if err == nil && peer != a.Peer {", "	if err == nil && peer.Node == \"\" {"},
		pkg: relayPackage, run: "^TestHostileTokenThatCountsNoLonger$"},
	{fault: fault{"a host on the link takes agents' tokens as their controller", "internal/peerauth/trust/trust.go", "RootCAs: roots,", "RootCAs: roots, InsecureSkipVerify: true,"},
		pkg: relayPackage, run: "^TestHostileControllerOfAnother$"},
	{fault: fault{"a compromised node answers without an end", relayAPIFile, "			if left >= 0 {\n", "			if left > maxAnswer {\n"}, pkg: relayPackage, run: "^TestHostileAnswers$"},
	{fault: fault{"a compromised node sends who asks elsewhere, or controls their terminal", relayAPIFile, "live.CauseRefused, printable(string(text))}", "live.CauseRefused, string(text)}"},
		pkg: relayPackage, run: "^TestHostileAnswers$"},
	{fault: fault{"a user who reads nothing makes the controller hold a node's events", "internal/relay/tunnel/tunnel.go",
		"MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: maxStreams * streamBuffer,", "MaxReceiveBufferPerStream: 1 << 30, MaxReceiveBufferPerConnection: 1 << 30,"},
		pkg: relayPackage, run: "^TestHostileReaderThatDoesNotRead$"},
	{fault: fault{"idle connections of one pod occupy the controller's port", relayFile, "httplimit.NewBudget(maxConns, maxConnsPerSource)", "httplimit.NewBudget(maxConns, maxConns)"},
		pkg: relayPackage, run: "^TestHostileIdleConnections$"},
	{fault: fault{"idle connections of many pods end those of agents with the controller", "internal/relay/tunnel/tunnel.go", "	httplimit.Keep(conn) ", "	httplimit.Keep(nil) "},
		pkg: relayPackage, run: "^TestHostileConnectionsOfAgentsStay$"},
	{fault: fault{"a compromised node keeps any number of connections with the controller", agentsFile, "	if before != nil {\n", "	if before != nil && before.Peer.PodUID != a.Peer.PodUID {\n"},
		pkg: relayPackage, run: "^TestHostileConnectionsOfOneNode$"},
	{fault: fault{"wrong tokens of many pods keep nodes' agents from connecting", reviewFile, "if r.ofNode(ctx, from) {", "if false {"},
		pkg: "./internal/peerauth", run: "^TestHostileTokensOfManyPods$"},
	{fault: fault{"a pod, or a token that is not an agent's for the controller, answers for a node", reviewFile,
		"	case s.User.Username != r.user:", "	case s.User.Username == \"\":"}, pkg: relayPackage, run: byAPIServer},
}
