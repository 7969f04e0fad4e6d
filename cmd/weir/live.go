// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	fanoutreport "github.com/weir-net/weir/internal/fanout/report"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/terminal"
	"github.com/weir-net/weir/internal/ui"
)

// answerWithin is how long an agent has to answer a question of one piece.
const answerWithin = 20 * time.Second

// statuses is where the agents' reports come from: what they last wrote, or what they say when they
// are asked.
type statuses struct {
	clients *clientset.Clients
	asker   *agentapi.Client // nil = what they last wrote
	store   *ask.Store       // nil = it is not asked how it is
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

// localStatus says how the node of an agent with this run folder is, and whence and how old what it
// knows of the cluster is, as the agent says at its socket.
func localStatus(ctx context.Context, runDir string, now func() time.Time, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var source wire.Source
	if err := askSocket(ctx, runDir, wire.SourcePath, &source); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, agent %s\n", terminal.OneLine(source.Node), terminal.OneLine(source.Version))
	for _, line := range sourceLines(&source, now()) {
		fmt.Fprintln(out, terminal.OneLine(line))
	}
	var st weirv1.NodeStatusStatus
	err := askSocket(ctx, runDir, "/status", &st)
	if e := (*wire.Error)(nil); errors.As(err, &e) && e.Code == wire.ExitRefused {
		fmt.Fprintf(out, "Not ready: %s\n", terminal.OneLine(e.Text))
		return errUnhealthy
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Data plane %s; %d pods, %d Services, %d policies\n", terminal.OneLine(st.Dataplane), st.Endpoints, st.Services, st.Policies)
	var bad []string
	for _, c := range st.Conditions {
		if c.Status != metav1.ConditionTrue {
			bad = append(bad, c.Type+": "+c.Message)
		}
	}
	for _, p := range st.Problems {
		bad = append(bad, p.String())
	}
	section(out, "Not healthy", bad)
	if len(bad) > 0 {
		return errUnhealthy
	}
	return nil
}

// sourceLines says whence an agent has the cluster, since when that has been without the API
// server, and how old what the agent has is.
func sourceLines(s *wire.Source, now time.Time) []string {
	from := "the API server"
	switch {
	case s.Fed && s.FanOut == "":
		from = "fan-outs, of which none is connected"
	case s.Fed:
		from = "fan-out " + s.FanOut
	}
	lines := []string{"Source: " + from}
	switch {
	case s.Connected && s.Fed:
		lines = append(lines, "It is in touch with the API server, as it said "+age(max(0, now.Sub(s.AsOf)))+" ago")
	case s.Connected:
		lines = append(lines, "In touch "+fanoutreport.Since(s.Since, now))
	case s.Fed && s.FanOut != "":
		lines = append(lines, "Without the API server "+fanoutreport.Since(s.Since, now)+": "+s.Error)
	default:
		lines = append(lines, "Out of touch "+fanoutreport.Since(s.Since, now)+": "+s.Error)
	}
	switch {
	case !s.Synced:
		lines = append(lines, "State: the cluster was not read yet")
	case s.AsOf.IsZero():
		lines = append(lines, "State: as the agent before had it; how old that is is not known")
	default:
		lines = append(lines, "State: as of "+s.AsOf.In(now.Location()).Format(time.DateTime)+", "+age(max(0, now.Sub(s.AsOf)))+" old")
	}
	return lines
}

func askSocket(ctx context.Context, runDir, path string, into any) error {
	var text bytes.Buffer
	if err := wire.Do(ctx, runDir, wire.Question{Path: path}, &text); err != nil {
		return err
	}
	if err := json.Unmarshal(text.Bytes(), into); err != nil {
		return fmt.Errorf("the agent's answer to %s: %w", path, err)
	}
	return nil
}

// changing reports whether another data plane is about to carry a node's packets.
func changing(s *weirv1.NodeStatus) bool {
	return slices.ContainsFunc(s.Status.Conditions, func(c weirv1.Condition) bool { return c.Reason == weirv1.ReasonChanging })
}

// clusterForPage says what `weir status` does, for the page of `weir ui`.
func clusterForPage(ctx context.Context, c *clientset.Clients) (*ui.Cluster, error) {
	r, err := readReport(ctx, statuses{clients: c}, "", time.Now())
	if err != nil {
		return nil, err
	}
	out := &ui.Cluster{Nodes: []ui.Node{}, Components: r.components, Faults: r.faults, Problems: r.problems, WithoutEffect: r.unsupported}
	for _, n := range r.nodes {
		of := ui.Node{Name: n.name, State: n.state, Ready: n.ready, Why: n.why, Dataplane: n.dataplane, Address: n.address, Version: n.version,
			Pods: n.endpoints, Services: n.services, Policies: n.policies, Drops: []ui.Drop{}, Tables: []ui.Table{}, Problems: []string{}}
		if n.said != nil {
			of.Report(n.said)
		}
		out.Nodes = append(out.Nodes, of)
	}
	return out, nil
}
