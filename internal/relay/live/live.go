// SPDX-License-Identifier: Apache-2.0

// Package live names what users ask about nodes by the API server: the group live.weir.dev, which
// the controller answers.
package live

import "github.com/weir-net/weir/internal/agentapi/wire"

// The group and what it has. A resource of it is agents/QUESTION of a node's name, such as
// /apis/live.weir.dev/v1alpha1/agents/worker1/status; rights are given for apiGroups
// [live.weir.dev], resources [agents/status].
const (
	Group    = "live.weir.dev"
	Version  = "v1alpha1"
	Resource = "agents"
	Root     = "/apis/" + Group + "/" + Version
)

// The ClusterRoles that allow to ask everything that changes nothing, and for other keys of
// WireGuard.
const (
	Role     = "weir-viewer"
	KeysRole = "weir-wireguard-keys"
)

// RoleFor is the ClusterRole that allows to ask a question.
func RoleFor(question string) string {
	if question == keyQuestion {
		return KeysRole
	}
	return Role
}

const keyQuestion = wire.KeyPath

// AllNodes is in the place of a node's name in questions about all of them, which the store of flow
// records answers: no node has this name. Who may ask about all nodes may ask it.
const AllNodes = "*"

// APIService is the name of the APIService by which the API server knows the controller.
const APIService = Version + "." + Group

// Path returns the path of a question about a node.
func Path(node, question string) string { return Root + "/" + Resource + "/" + node + question }

// Verbs of the questions, by their path at the agent.
func Verbs() map[string]string {
	return map[string]string{"/status": "get", "/events": "get", "/addresses": "get", "/bgp": "get", "/bgproutes": "get", "/flows": "get", "/why": "create", keyQuestion: "create"}
}

// Parameters are those of a question's query: others are not handed on.
func Parameters(question string) []string {
	switch question {
	case "/events":
		return []string{"type", "pod"}
	case "/flows":
		return []string{"since", "until", "denied", "from", "to", "namespaces", "policy", "limit", "oldest", "top", "status"}
	case "/bgp":
		return []string{"neighbor"}
	case "/bgproutes":
		return []string{"peer", "sent", "prefix"}
	}
	return nil
}

// Causes that the details of a refusal name: what is between a question and its answer.
const (
	CauseNoAgent = "NoAgent" // the node's agent is not connected
	CauseUnknown = "Unknown" // its version does not know the question
	CauseRefused = "Refused" // it answered that it cannot answer
)
