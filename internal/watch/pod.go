// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// cacheWait is how long PodForAdd waits for the watch to see the pod: the kubelet learns of a pod
// from the same API server at the same moment.
const cacheWait = 100 * time.Millisecond

// ErrPodReplaced says that a pod of this name exists, but with another UID.
var ErrPodReplaced = errors.New("the pod was replaced by another one of the same name")

// AddPod is what a CNI ADD needs to know of its pod.
type AddPod struct {
	Pod         *model.Pod
	UID         string
	Annotations map[string]string // of those with a projectcalico.org prefix
	Namespace   *model.Namespace  // nil when it is not known yet
	// NamespaceAnnotations are defaults for Annotations.
	NamespaceAnnotations map[string]string
	Problems             []weirv1.Problem
}

// PodForAdd returns the pod of a CNI ADD, from the cache when it is there with this UID, after a
// short wait, or from the API server. An empty uid accepts any. Errors: ErrPodReplaced, those of
// the API server (apierrors.IsNotFound works on them), and ctx's.
func (w *Watcher) PodForAdd(ctx context.Context, name model.Name, uid string) (*AddPod, error) {
	deadline := time.NewTimer(cacheWait)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		if p := w.pods.get(name); p.is(uid) {
			return w.addPod(p), nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("look up pod %s: %w", name, ctx.Err())
		case <-deadline.C:
			waiting = false
		case <-tick.C:
		}
	}
	p, err := readPod(ctx, w.core, name, uid)
	if err != nil {
		return nil, err
	}
	return w.addPod(p), nil
}

// KnownPod returns a pod with that UID (any, when empty) as the watch has it, and nil where it has
// not seen the pod or its namespace.
func (w *Watcher) KnownPod(name model.Name, uid string) *AddPod {
	p := w.pods.get(name)
	if !p.is(uid) {
		return nil
	}
	if out := w.addPod(p); out.Namespace != nil {
		return out
	}
	return nil
}

// readPod reads the pod of a CNI ADD from the API server.
func readPod(ctx context.Context, core client.Core, name model.Name, uid string) (*podEntry, error) {
	o, err := core.Pod(ctx, name.Namespace, name.Name)
	if err != nil {
		return nil, fmt.Errorf("look up pod %s, which the watch has not seen: %w", name, err)
	}
	stripMeta(o)
	v, found := ConvertPod(o)
	p := newPodEntry(o, v, found).(*podEntry)
	if !p.is(uid) {
		return nil, fmt.Errorf("look up pod %s with UID %s: %w (UID %s)", name, uid, ErrPodReplaced, o.UID)
	}
	return p, nil
}

// LookUpPod returns the pod of a CNI ADD with its namespace as the API server has them, for those
// who watch neither. Errors are as of PodForAdd.
func LookUpPod(ctx context.Context, core client.Core, name model.Name, uid string) (*AddPod, error) {
	p, err := readPod(ctx, core, name, uid)
	if err != nil {
		return nil, err
	}
	ns, err := core.Namespace(ctx, name.Namespace)
	if err != nil {
		return nil, fmt.Errorf("look up namespace %s: %w", name.Namespace, err)
	}
	stripMeta(ns)
	v, _ := ConvertNamespace(ns)
	return &AddPod{Pod: p.pod, UID: p.uid, Annotations: p.annotations, Problems: p.problems, Namespace: v, NamespaceAnnotations: ns.Annotations}, nil
}

// podEntry is what is kept of a pod in addition to its value in the model.
type podEntry struct {
	pod         *model.Pod
	uid         string
	annotations map[string]string
	problems    []weirv1.Problem
}

func newPodEntry(p *corev1.Pod, v *model.Pod, found []weirv1.Problem) any {
	return &podEntry{pod: v, uid: string(p.UID), annotations: p.Annotations, problems: found}
}

// is reports whether the kubelet calls the pod by this UID. A static pod's UID is the hash of its
// file; the object that represents it in the API has a UID of its own, and the hash in an
// annotation.
func (p *podEntry) is(uid string) bool {
	return p != nil && (uid == "" || p.uid == uid || p.annotations[configHash] == uid)
}

const configHash = "kubernetes.io/config.hash"

// spaceEntry is what is kept of a namespace.
type spaceEntry struct {
	space       *model.Namespace
	annotations map[string]string
}

func newSpaceEntry(n *corev1.Namespace, v *model.Namespace, _ []weirv1.Problem) any {
	return &spaceEntry{space: v, annotations: n.Annotations}
}

func (w *Watcher) addPod(p *podEntry) *AddPod {
	out := &AddPod{Pod: p.pod, UID: p.uid, Annotations: p.annotations, Problems: p.problems}
	if ns := w.spaces.get(model.Name{Name: p.pod.Name.Namespace}); ns != nil {
		out.Namespace, out.NamespaceAnnotations = ns.space, ns.annotations
	}
	return out
}

// PodLives reports whether the pod with that UID (any, when empty) exists, is on the node and has
// not finished. When in doubt it does: before everything was read, and for a pod that is not known
// while the API server does not answer.
func (w *Watcher) PodLives(name model.Name, uid, node string) bool {
	p := w.pods.get(name)
	if p == nil {
		s := w.Status()
		// What is known now may be old: a pod that is gone here may have been made anew.
		return !s.Synced || !s.Connected
	}
	return p.is(uid) && p.pod.Node == node && !p.pod.Finished
}
