// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/nodestate"
)

const kindStatus = "CalicoNodeStatus"

var statusResource = v3.SchemeGroupVersion.WithResource("caliconodestatuses")

// Periods of updates, in seconds.
const (
	defaultPeriod = 10
	maxPeriod     = 24 * 60 * 60
)

// Writer fills the CalicoNodeStatus objects of its node while BGP is in use there: nobody else
// follows them, so that a cluster without BGP has no watch for them.
type Writer struct {
	Node    string
	API     dynamic.Interface
	Process Process
	State   func() *nodestate.State // nil = it is not known yet
	// Peers returns the BGPPeers by name, with their type in a CalicoNodeStatus.
	Peers func(context.Context) (map[string]v3.BGPPeerType, error)
	Log   *slog.Logger

	mu       sync.Mutex
	problems map[string][]weirv1.Problem // by object
}

const (
	lookEvery = time.Second
	// retryAfter is how long to wait when an object cannot be written, or objects not be read.
	retryAfter = 30 * time.Second
	// writeWithin bounds one object.
	writeWithin = 30 * time.Second
)

// Run fills the objects until ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var f *following
	var tried time.Time
	for {
		s := w.State()
		used := s != nil && s.BGP != nil
		switch {
		case used && f == nil && time.Since(tried) > retryAfter:
			tried = time.Now()
			f = w.follow(ctx)
		case s != nil && !used && f != nil: // they say once more how it is
			w.pass(ctx, f, true)
			f.stop()
			f, tried = nil, time.Time{}
			w.forget(func(string) bool { return true })
		}
		if f != nil {
			w.pass(ctx, f, false)
		}
		select {
		case <-ctx.Done():
			if f != nil {
				f.stop()
			}
			return nil
		case <-tick.C:
		}
	}
}

// following is the objects of the node.
type following struct {
	informer cache.SharedIndexInformer
	stop     func()
	written  map[types.UID]written
}

// written is what was done with an object.
type written struct {
	generation int64
	next       time.Time
}

// follow begins to follow the objects: those of this node alone where the API server can tell them
// apart (Kubernetes 1.31). It returns nil where they cannot be read.
func (w *Writer) follow(ctx context.Context) *following {
	of := fields.OneTermEqualSelector("spec.node", w.Node).String()
	_, err := w.API.Resource(statusResource).List(ctx, metav1.ListOptions{FieldSelector: of, Limit: 1})
	if apierrors.IsBadRequest(err) {
		of = ""
		_, err = w.API.Resource(statusResource).List(ctx, metav1.ListOptions{Limit: 1})
	}
	if err != nil {
		if ctx.Err() == nil {
			w.Log.Warn("objects of kind CalicoNodeStatus cannot be read; trying again", "error", err)
		}
		return nil
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(w.API, statusResource, "", 0, cache.Indexers{}, func(o *metav1.ListOptions) { o.FieldSelector = of }).Informer()
	// What others, and this program, wrote into them is of no use here.
	err = informer.SetTransform(func(o any) (any, error) {
		if u, is := o.(*unstructured.Unstructured); is {
			delete(u.Object, "status")
			u.SetManagedFields(nil)
			u.SetAnnotations(nil)
		}
		return o, nil
	})
	if err == nil {
		err = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			w.Log.Debug("objects of kind CalicoNodeStatus cannot be followed for the moment", "error", err)
		})
	}
	if err != nil {
		w.Log.Error("objects of kind CalicoNodeStatus cannot be followed", "error", err)
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	return &following{informer: informer, written: map[types.UID]written{}, stop: func() {
		cancel()
		running.Wait()
	}}
}

// pass fills the objects that are due, or all.
func (w *Writer) pass(ctx context.Context, f *following, all bool) {
	there, names := map[types.UID]bool{}, map[string]bool{}
	for _, o := range f.informer.GetStore().List() {
		u, is := o.(*unstructured.Unstructured)
		if !is {
			continue
		}
		var spec v3.CalicoNodeStatusSpec
		problems := []weirv1.Problem(nil)
		content, _, err := unstructured.NestedMap(u.Object, "spec")
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(content, &spec)
		}
		if err != nil || spec.Node != w.Node {
			continue // of another node, or of none; the schema has the API server refuse what is no spec
		}
		names[u.GetName()], there[u.GetUID()] = true, true
		period, problems := check(u.GetName(), &spec)
		last, was := f.written[u.GetUID()]
		if was && last.generation == u.GetGeneration() && time.Now().Before(last.next) && !all {
			continue
		}
		next := time.Now().Add(period)
		if period > 0 {
			more, err := w.write(ctx, u.GetName(), &spec)
			problems = append(problems, more...)
			if err != nil && ctx.Err() == nil {
				next = time.Now().Add(min(period, retryAfter))
				problems = append(problems, weirv1.Problem{Object: kindStatus + " " + u.GetName(), Field: "status", Message: "cannot be written: " + err.Error(),
					Action: "see the log of this node's weir-node"}.Clip())
				w.Log.Warn("a CalicoNodeStatus cannot be written; trying again", "name", u.GetName(), "error", err)
			}
		} else {
			next = time.Now().Add(maxPeriod * time.Second) // until it is written anew
		}
		f.written[u.GetUID()] = written{u.GetGeneration(), next}
		w.mu.Lock()
		if w.problems == nil {
			w.problems = map[string][]weirv1.Problem{}
		}
		w.problems[u.GetName()] = problems
		w.mu.Unlock()
	}
	maps.DeleteFunc(f.written, func(id types.UID, _ written) bool { return !there[id] })
	w.forget(func(name string) bool { return !names[name] })
}

func (w *Writer) forget(which func(string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.problems, func(name string, _ []weirv1.Problem) bool { return which(name) })
}

// Problems are those of the objects.
func (w *Writer) Problems() []weirv1.Problem {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []weirv1.Problem
	for _, name := range slices.Sorted(maps.Keys(w.problems)) {
		out = append(out, w.problems[name]...)
	}
	return out
}

// check returns the period that is in force, 0 = none, and what of a spec is not. The schema
// refuses most of it; objects may be older than that.
func check(name string, s *v3.CalicoNodeStatusSpec) (time.Duration, []weirv1.Problem) {
	var out []weirv1.Problem
	add := func(field, value, message, action string) {
		out = append(out, weirv1.Problem{Object: kindStatus + " " + name, Field: "spec." + field, Value: value, Message: message, Action: action}.Clip())
	}
	period := uint32(defaultPeriod)
	if p := s.UpdatePeriodSeconds; p != nil {
		if period = *p; period > maxPeriod {
			period = maxPeriod
			add("updatePeriodSeconds", fmt.Sprint(*p), fmt.Sprintf("is more than a day; %d is in force", maxPeriod), "correct it")
		}
	}
	if len(s.Classes) == 0 {
		add("classes", "", "is empty: nothing is reported but when", "name some of Agent, BGP and Routes")
	}
	for _, c := range s.Classes {
		switch c {
		case v3.NodeStatusClassTypeAgent, v3.NodeStatusClassTypeBGP, v3.NodeStatusClassTypeRoutes:
		default:
			add("classes", string(c), "is none of Agent, BGP and Routes; nothing is reported for it", "correct it")
		}
	}
	return time.Duration(period) * time.Second, out
}

// write fills one object. The problems say what does not fit into it.
func (w *Writer) write(ctx context.Context, name string, spec *v3.CalicoNodeStatusSpec) ([]weirv1.Problem, error) {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	peers, err := w.Peers(ctx)
	if err != nil {
		return nil, err
	}
	r := &reporter{state: w.State(), status: w.Process.Status(), peers: peers}
	out, left, err := r.report(ctx, spec.Classes, w.Process)
	if err != nil {
		return nil, err
	}
	// The whole status: what is not there any more is to go.
	patch, err := json.Marshal([]any{map[string]any{"op": "add", "path": "/status", "value": out}})
	if err != nil {
		return nil, err
	}
	_, err = w.API.Resource(statusResource).Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "weir-agent"}, "status")
	if apierrors.IsNotFound(err) {
		err = nil // it was deleted
	}
	var problems []weirv1.Problem
	if left > 0 {
		problems = append(problems, weirv1.Problem{Object: kindStatus + " " + name, Field: "status.routes",
			Message: fmt.Sprintf("has the first %d routes of each family; there are more", maxRoutes), Action: "see weir bgp routes --node " + w.Node}.Clip())
	}
	return problems, err
}

// typeOf is the type of a BGPPeer in a CalicoNodeStatus.
func typeOf(node, nodeSelector string) v3.BGPPeerType {
	if cmp.Or(node, nodeSelector) != "" {
		return v3.BGPPeerTypeNodePeer
	}
	return v3.BGPPeerTypeGlobalPeer
}
