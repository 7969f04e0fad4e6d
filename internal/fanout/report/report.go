// SPDX-License-Identifier: Apache-2.0

// Package report has what the replicas of a fan-out say of themselves, and where: each writes an
// entry of ConfigMap weir-fanout-status, which is all that it may write. People read it with `weir
// status`, without a right to anything in the pods of fan-outs.
package report

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// ConfigMap is the name of the object, which is installed empty.
	ConfigMap = "weir-fanout-status"
	// Every is the time between two reports of a replica.
	Every = 10 * time.Second
	// SilentAfter is the age of a report from which on its replica counts as silent. Clocks differ.
	SilentAfter = time.Minute
	// LateAfter is how long an agent may wait for a change until it is named.
	LateAfter = 5 * time.Second
	// goneAfter is the age of a report from which on others remove it: its replica was not able to.
	goneAfter = 10 * time.Minute
	// mostLate bounds the agents that are named, and with that the size of a report.
	mostLate = 10
)

// Agent says how an agent is served.
type Agent struct {
	Node    string        `json:"node"`
	Program string        `json:"program"`
	For     time.Duration `json:"for"`    // how long it has been served
	Behind  time.Duration `json:"behind"` // how long it has waited for what was not sent yet
	View    int64         `json:"view"`   // bytes that it was sent as all that its node needs; 0 = it had some of it from another replica
}

// Report is what a replica says.
type Report struct {
	At    time.Time `json:"at"`
	Node  string    `json:"node"` // that it runs on
	Nodes int       `json:"nodes"`
	// Connected: it is in touch with the API server, since Since; or has been out of touch since
	// then, because of Error.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	Error     string    `json:"error,omitempty"`
	// How long agents have waited for what they were not sent yet, milliseconds.
	BehindMedian int64  `json:"behindMedianMs"`
	BehindMost   int64  `json:"behindMostMs"`
	BehindNode   string `json:"behindNode,omitempty"` // that of BehindMost
	// Agents that have waited for longer than LateAfter: how many, and the first of them.
	Late      int    `json:"late,omitempty"`
	LateNodes []Late `json:"lateNodes,omitempty"`
	// Bytes of what nodes need, of those that were sent all of it by this replica.
	Views      int   `json:"views"`
	ViewMedian int64 `json:"viewMedianBytes"`
	ViewMost   int64 `json:"viewMostBytes"`
}

// Late is an agent that waits.
type Late struct {
	Node     string `json:"node"`
	BehindMs int64  `json:"behindMs"`
}

// maxError bounds the text of why a replica is out of touch.
const maxError = 300

// Of sums agents up.
func Of(now time.Time, node string, connected bool, since time.Time, why string, agents []Agent) Report {
	r := Report{At: now.UTC(), Node: node, Nodes: len(agents), Connected: connected, Since: since.UTC(), Error: why[:min(len(why), maxError)]}
	agents = slices.Clone(agents)
	slices.SortFunc(agents, func(a, b Agent) int {
		return cmp.Or(cmp.Compare(b.Behind, a.Behind), cmp.Compare(a.Node, b.Node))
	})
	var views []int64
	for _, a := range agents {
		if a.Behind > LateAfter {
			if r.Late++; r.Late <= mostLate {
				r.LateNodes = append(r.LateNodes, Late{a.Node, a.Behind.Milliseconds()})
			}
		}
		if a.View > 0 {
			views = append(views, a.View)
		}
	}
	if len(agents) > 0 {
		r.BehindMedian, r.BehindMost = agents[len(agents)/2].Behind.Milliseconds(), agents[0].Behind.Milliseconds()
		if r.BehindMost > 0 {
			r.BehindNode = agents[0].Node
		}
	}
	if slices.Sort(views); len(views) > 0 {
		r.Views, r.ViewMedian, r.ViewMost = len(views), views[len(views)/2], views[len(views)-1]
	}
	return r
}

// Writer writes the reports of one replica.
type Writer struct {
	Kube      kubernetes.Interface
	Namespace string
	Replica   string // the key of its entry: the name of its pod
	Log       *slog.Logger
	Now       func() time.Time
	Report    func() Report
	// Heard, if set, is told what became of each report: a server that keeps its connections and
	// says nothing is noticed by that alone, since what watches it hears nothing in any case.
	Heard func(error)
}

// Run writes a report now and then until ctx ends, and takes it away then.
func (w *Writer) Run(ctx context.Context) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for failing := false; ; {
		err := w.write(ctx)
		if err != nil && ctx.Err() == nil {
			err = w.write(ctx) // one request may be late
		}
		if w.Heard != nil && ctx.Err() == nil {
			w.Heard(err)
		}
		if err != nil && !failing && ctx.Err() == nil {
			w.Log.Warn("what `weir status` shows of this fan-out could not be written; it is tried again", "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_, _ = w.patch(ctx, map[string]*string{w.Replica: nil}) // else another replica removes it later
			return
		case <-tick.C:
		}
	}
}

// write writes the entry of this replica, and removes those of replicas that ended long ago.
func (w *Writer) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Every/2)
	defer cancel()
	text, err := json.Marshal(w.Report())
	if err != nil {
		return err
	}
	entry := string(text)
	all, err := w.patch(ctx, map[string]*string{w.Replica: &entry})
	if err != nil {
		return err
	}
	gone := map[string]*string{}
	for replica, text := range all {
		var r Report
		if replica != w.Replica && (json.Unmarshal([]byte(text), &r) != nil || w.Now().Sub(r.At) > goneAfter) {
			gone[replica] = nil
		}
	}
	if len(gone) > 0 {
		_, err = w.patch(ctx, gone)
	}
	return err
}

// patch sets or removes (nil) entries, and returns all of them.
func (w *Writer) patch(ctx context.Context, entries map[string]*string) (map[string]string, error) {
	body, err := json.Marshal(map[string]any{"data": entries})
	if err != nil {
		return nil, err
	}
	got, err := w.Kube.CoreV1().ConfigMaps(w.Namespace).Patch(ctx, ConfigMap, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "weir-fanout"})
	if err != nil {
		return nil, fmt.Errorf("patch ConfigMap %s/%s: %w", w.Namespace, ConfigMap, err)
	}
	return got.Data, nil
}

// Read returns what replicas have reported, by replica, and the names of those whose report cannot
// be read. There is nothing where the object is not installed.
func Read(ctx context.Context, kube kubernetes.Interface, namespace string) (reports map[string]Report, unreadable []string, err error) {
	got, err := kube.CoreV1().ConfigMaps(namespace).Get(ctx, ConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("get ConfigMap %s/%s: %w", namespace, ConfigMap, err)
	}
	reports = map[string]Report{}
	for replica, text := range got.Data {
		var r Report
		if json.Unmarshal([]byte(text), &r) != nil {
			unreadable = append(unreadable, replica)
			continue
		}
		reports[replica] = r
	}
	slices.Sort(unreadable)
	return reports, unreadable, nil
}
