// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/kubeproxy"
	"github.com/weir-net/weir/internal/nodestate"
)

// nftablesNotInForce names what a state asks for and the data plane nftables does not do. Each is
// named once, with one example. Host endpoints are hostProblems'.
func nftablesNotInForce(node string, s *nodestate.State, lacks map[dataplane.Feature]string) []weirv1.Problem {
	var out []weirv1.Problem
	add := func(field, value, message string) {
		out = append(out, weirv1.Problem{Object: "Node " + node, Field: field, Value: value, Message: message,
			Action: "set bpfEnabled: true in FelixConfiguration, of this node or of all"})
	}
	if first, n := tooManyHashed(s); n > 0 && !s.Settings.KubeProxy {
		add("consistent hashing", someOf([]string{first}, n), fmt.Sprintf("Services choose backends without it: in the data plane nftables it is for %d backends at most", nft.MaxHashed))
	}
	if _, nftables := lacks[dataplane.FeatureUntracked]; nftables && (nft.EvaluatesForwarded(s, false) || nft.EvaluatesForwarded(s, true)) {
		add("host endpoints", "applyOnForward", "clients outside whose backend is on another node get this node's address as their source: the data plane nftables hands nothing on where policies for host endpoints apply to what passes the node (applyOnForward without preDNAT and doNotTrack)")
	}
	if why, ok := lacks[dataplane.FeatureNames]; ok && len(s.Names.Sets) > 0 {
		add("domainNames", slices.Min(slices.Collect(maps.Keys(s.Names.Patterns))), "rules with domain names allow nothing on this node: "+why)
	}
	if why, ok := lacks[dataplane.FeatureUntracked]; ok && s.EvaluatesUntracked() {
		add("doNotTrack", "", "packets are evaluated by themselves, but take room in the connection table: "+why)
	}
	return out
}

// KubeProxy names a mode of kube-proxy with which policy is not what it says.
func KubeProxy(node string, h kubeproxy.Handling) []weirv1.Problem {
	if !h.Proxy || h.Mode != kubeproxy.ModeIPVS {
		return nil
	}
	return []weirv1.Problem{{Object: "Node " + node, Field: "services", Value: "kube-proxy in mode ipvs",
		Message: "it translates after policy was evaluated: what asks for a Service is evaluated by the Service's address, and what comes to a pod by one as the node's own",
		Action:  "let kube-proxy have mode nftables or iptables, or remove it: Weir carries Services"}}
}

// someOf names some of n.
func someOf(named []string, n int) string {
	text := strings.Join(named, ", ")
	if n == len(named) {
		return text
	}
	return fmt.Sprintf("%s and %d more", text, n-len(named))
}

// tooManyHashed counts the Services' ports that ask for consistent hashing and have more backends
// than nftables does that for, and returns the first by name.
func tooManyHashed(s *nodestate.State) (first string, n int) {
	seen := map[nodestate.Frontend]bool{}
	for _, svc := range s.Frontends.All() {
		if !svc.Maglev || seen[svc.ID] {
			continue
		}
		seen[svc.ID] = true
		backends := 0
		for _, b := range s.Backends.At(svc.ID) {
			if b.InList(false) {
				backends++
			}
		}
		if backends <= nft.MaxHashed {
			continue
		}
		name := svc.ID.String()
		if r, ok := s.Rules.Get(svc.Rule); ok {
			name = r.String()
		}
		if n++; n == 1 || name < first {
			first = name
		}
	}
	return first, n
}

// NFTables keeps what nftablesNotInForce says of the last state: a status is made every few
// seconds, and states are large.
type NFTables struct {
	mu    sync.Mutex
	state *nodestate.State
	found []weirv1.Problem
}

func (l *NFTables) Of(node string, s *nodestate.State, lacks map[dataplane.Feature]string) []weirv1.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s == nil {
		return nil
	}
	if l.state != s {
		l.state, l.found = s, nftablesNotInForce(node, s, lacks)
	}
	return l.found
}
