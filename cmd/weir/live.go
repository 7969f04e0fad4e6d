// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
)

// answerWithin is how long an agent has to answer a question of one piece.
const answerWithin = 20 * time.Second

// statuses is where the agents' reports come from: what they last wrote, or what they say when they
// are asked.
type statuses struct {
	clients *clientset.Clients
	asker   *agentapi.Client // nil = what they last wrote
}

// read returns the reports of nodes by name. What keeps an agent from answering is a fault of r.
func (s statuses) read(ctx context.Context, r *report, nodes []corev1.Node) (map[string]*weirv1.NodeStatus, error) {
	if s.asker == nil {
		return s.written(ctx, r)
	}
	byName := map[string]*weirv1.NodeStatus{}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	names := make([]string, len(nodes))
	answers := make([]*weirv1.NodeStatus, len(nodes))
	for i := range nodes {
		names[i], answers[i] = nodes[i].Name, &weirv1.NodeStatus{ObjectMeta: metav1.ObjectMeta{Name: nodes[i].Name}}
	}
	var silent []int
	errs := map[int]error{}
	for i, err := range agentapi.Each(names, func(i int, node string) error {
		return s.asker.AskJSON(ctx, node, wire.Question{Path: "/status"}, &answers[i].Status)
	}) {
		if errors.Is(err, agentapi.ErrNoAgent) {
			silent = append(silent, i)
		}
		if err != nil {
			errs[i] = err
			continue
		}
		byName[names[i]] = answers[i]
	}
	// An agent does not answer while it starts again with another data plane. It has said so
	// before.
	if len(silent) > 0 {
		last, err := s.written(ctx, r)
		if err != nil {
			return nil, err
		}
		for _, i := range silent {
			if n := last[names[i]]; n != nil && changing(n) {
				byName[names[i]] = n
				delete(errs, i)
			}
		}
	}
	for _, i := range slices.Sorted(maps.Keys(errs)) {
		r.faults = append(r.faults, fmt.Sprintf("no live report: %v", errs[i]))
	}
	return byName, nil
}

// written returns what the agents last wrote.
func (s statuses) written(ctx context.Context, r *report) (map[string]*weirv1.NodeStatus, error) {
	byName := map[string]*weirv1.NodeStatus{}
	list, err := client.NodeStatuses(s.clients.Dynamic).List(ctx)
	if apierrors.IsNotFound(err) {
		r.faults = append(r.faults, "the CustomResourceDefinitions are not installed; run `weir install`")
		err = nil
	}
	for i := range list {
		byName[list[i].Name] = &list[i]
	}
	return byName, err
}

// changing reports whether another data plane is about to carry a node's packets.
func changing(s *weirv1.NodeStatus) bool {
	return slices.ContainsFunc(s.Status.Conditions, func(c weirv1.Condition) bool { return c.Reason == weirv1.ReasonChanging })
}
