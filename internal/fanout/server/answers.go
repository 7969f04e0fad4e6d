// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/netip"

	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/model"
)

// Bounds of the answers that wait to be sent to an agent. Whoever asks for more asks again.
const (
	maxOwners   = 256
	maxPods     = 64
	maxPodName  = 253 + 63 // with the namespace
	maxQuestion = 64       // bytes of a UID, or of a static pod's hash
)

// answerOwners has an agent sent whose addresses are.
func (s *Server) answerOwners(f *follower, addrs [][]byte) {
	if len(addrs) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &stream.Response{}
	for _, b := range addrs {
		a, ok := netip.AddrFromSlice(b)
		if !ok || f.owners == maxOwners {
			continue
		}
		name := s.index.OwnerOf(a)
		resp.Owners = append(resp.Owners, &stream.Owner{Addr: b, Namespace: []byte(name.Namespace), Name: []byte(name.Name)})
		f.owners++
	}
	f.answers = append(f.answers, resp)
	f.wakeUp()
}

// answerPods has an agent sent what it needs to know of pods that its kubelet starts. The kubelet
// starts a pod when the API has placed it on the node: of pods of other nodes, and of those that
// are not placed, the agent is told as much as of those that do not exist.
func (s *Server) answerPods(f *follower, questions []*stream.PodQuestion) {
	if s.cfg.Pod == nil {
		return
	}
	for _, q := range questions {
		if q == nil || len(q.Namespace)+len(q.Name) > maxPodName || len(q.Uid) > maxQuestion {
			continue
		}
		answer := &stream.PodAnswer{Question: q}
		name := model.Name{Namespace: string(q.Namespace), Name: string(q.Name)}
		if p := s.cfg.Pod(name, string(q.Uid)); p != nil && p.Pod.Node == f.peer.Node {
			answer.Uid = []byte(p.UID)
			answer.Annotations, answer.NamespaceAnnotations = stream.MapOf(p.Annotations), stream.MapOf(p.NamespaceAnnotations)
			answer.NamespaceLabels = stream.MapOf(p.Namespace.Labels)
		}
		// Each in a message of its own: annotations may be long.
		s.mu.Lock()
		if f.asked < maxPods {
			f.answers = append(f.answers, &stream.Response{Pods: []*stream.PodAnswer{answer}})
			f.asked++
		}
		s.mu.Unlock()
	}
	if len(questions) > 0 {
		f.wakeUp()
	}
}
