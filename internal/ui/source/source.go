// SPDX-License-Identifier: Apache-2.0

// Package source answers the questions of package ui with the rights of one user of the API server:
// it lists objects as that user, and asks agents as `weir flows` and `weir why` do. What the user
// may not do is said in the answer, or is its error.
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/ui"
	why "github.com/weir-net/weir/internal/why/ask"
)

// whyWithin is how long the nodes on a connection's path have in all.
const whyWithin = 40 * time.Second

// User is a ui.Source. It is safe for concurrent use.
type User struct {
	From    ui.Records
	Clients *clientset.Clients
	Agents  *agentapi.Client
	// Status says how the cluster is, as `weir status` does.
	Status func(context.Context) (*ui.Cluster, error)
}

var _ ui.Source = (*User)(nil)

// New returns the source of a user, with records of the store or of agents.
func New(c *clientset.Clients, agents *agentapi.Client, status func(context.Context) (*ui.Cluster, error)) *User {
	return &User{From: Recorded{c, agents.AskStore, agents.Ask}, Clients: c, Agents: agents, Status: status}
}

// Recorded are the records of the cluster's store, or, where there is none or it does not answer,
// those in the memory of agents.
type Recorded struct {
	Clients  *clientset.Clients
	AskStore func(ctx context.Context, q wire.Question, out io.Writer) error
	Ask      ask.Ask
}

// Records implements ui.Records: where no store answers, all nodes are asked.
func (r Recorded) Records(ctx context.Context, f flows.Filter, most int) (*ask.Found, error) {
	list, err := r.Clients.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, noRight(fmt.Errorf("list nodes: %w", err))
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	found, err := (&ask.Preferred{Store: &ask.Store{Ask: r.AskStore}, Agents: &ask.Agents{Nodes: names, Ask: r.Ask}}).Latest(ctx, f, most)
	if errors.Is(err, ask.ErrNoAnswer) {
		return found, nil // why each node has none is among what was found
	}
	return found, noRight(err)
}

// Records implements ui.Source.
func (u *User) Records(ctx context.Context, f flows.Filter, most int) (*ask.Found, error) {
	return u.From.Records(ctx, f, most)
}

// Cluster implements ui.Source.
func (u *User) Cluster(ctx context.Context) (*ui.Cluster, error) {
	c, err := u.Status(ctx)
	return c, noRight(err)
}

// Why implements ui.Source.
func (u *User) Why(ctx context.Context, q ui.Question) (*why.Story, error) {
	if q.Source == "" || q.Target == "" {
		return nil, fmt.Errorf("%w: a source and a target are needed", ui.ErrQuestion)
	}
	namespace := q.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	s, err := why.Nodes(ctx, u.Clients.Kube, u.Agents, q.Source, q.Target,
		why.Options{Namespace: namespace, Node: q.Node, Backend: q.Backend, SourcePort: q.SourcePort, Within: whyWithin})
	return s, noRight(err)
}

// noRight marks an error that says that the user has not the right.
func noRight(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || errors.Is(err, agentapi.ErrNoRight) {
		return fmt.Errorf("%w: %w", ui.ErrNoRight, err)
	}
	return err
}
