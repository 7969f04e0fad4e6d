// SPDX-License-Identifier: Apache-2.0

package main

const (
	fanOutPackage  = "./internal/fanout/server"
	fanOutFollower = "internal/fanout/server/follower.go"
)

// attacksFanOut are the guards of who gets which part of the cluster from a fan-out.
var attacksFanOut = []mutant{
	{fault: fault{"somebody without an agent's token, or with one of a Node that is gone, asks a fan-out for the cluster", fanOutFollower,
		"	if !s.index.HasNode(peer.Node) {", "	if peer.Node == \"\" {"}, pkg: fanOutPackage, run: "^TestHostileClientsOfFanOut$"},
	{fault: fault{"a compromised node says that it has the pods of other nodes, to read their policies and peers from a fan-out", fanOutFollower,
		"on == \"\" || on == node {", "on == \"\" || node != \"\" {"}, pkg: fanOutPackage, run: "^TestHostileEndpointsOfOthers$"},
	{fault: fault{"an agent's token is used after its pod or Node is gone, or after it expired", "internal/fanout/server/server.go",
		"(pod == nil || pod.UID", "(pod != nil && pod.UID"}, pkg: fanOutPackage, run: "^TestHostileAgentThatIsGone$"},
	{fault: fault{"who has no token of an agent that lives connects to a fan-out while the API server is away", "internal/peerauth/offline.go",
		"	case !o.lives(peer):\n", "	case peer.Node == \"\":\n"}, pkg: "./internal/peerauth", run: "^TestHostileTokensOffline$"},
	{fault: fault{"a compromised node asks a fan-out for the annotations of pods of other nodes, or keeps it busy with questions", "internal/fanout/server/answers.go",
		"p != nil && p.Pod.Node == f.peer.Node {", "p != nil {"}, pkg: fanOutPackage, run: "^TestHostileQuestionsAboutPods$"},
	{fault: fault{"agents of many compromised nodes do not read their snapshots, so that others wait for theirs", fanOutFollower,
		"	late := time.AfterFunc(s.cfg.SnapshotWithin, leave)\n", "	late := time.AfterFunc(time.Hour, leave)\n"}, pkg: fanOutPackage, run: "^TestHostileSnapshotsThatAreNotRead$"},
	{fault: fault{"an agent does not read what a fan-out sends it", "internal/fanout/server/server.go",
		"		s.note(f, began)\n", "		for s.note(f, began); len(f.wake) > 0 && f.view.Pending(); {\n			s.mu.Unlock()\n			time.Sleep(time.Millisecond)\n			s.mu.Lock()\n			if f.view == nil {\n				break\n			}\n		}\n"},
		pkg: fanOutPackage, run: "^TestHostileAgentThatDoesNotRead$"},
	{fault: fault{"a compromised node says that it has what it has not, or rubbish, to have a fan-out work and send without bounds", "internal/fanout/stream/held.go",
		"		if total += 1 << m.Bits; total > digest.MostBuckets {", "		if total += 1 << m.Bits; false {"}, pkg: fanOutPackage, run: "^TestHostileDigests$"},
}
