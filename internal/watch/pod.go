package watch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// cacheWait is how long PodForAdd waits for the watch to see the pod: the kubelet learns of a pod from
// the same API server at the same moment.
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

// PodForAdd returns the pod of a CNI ADD, from the cache when it is there with this UID, after a short
// wait, or from the API server. An empty uid accepts any. Errors: ErrPodReplaced, those of the API server
// (apierrors.IsNotFound works on them), and ctx's.
func (w *Watcher) PodForAdd(ctx context.Context, name model.Name, uid string) (*AddPod, error) {
	deadline := time.NewTimer(cacheWait)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		if p := w.cachedPod(name, uid); p != nil {
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
	p, err := w.kube.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("look up pod %s, which the watch has not seen: %w", name, err)
	}
	if !isPod(p, uid) {
		return nil, fmt.Errorf("look up pod %s with UID %s: %w (UID %s)", name, uid, ErrPodReplaced, p.UID)
	}
	stripMeta(p)
	return w.addPod(p), nil
}

func (w *Watcher) cachedPod(name model.Name, uid string) *corev1.Pod {
	obj, ok, err := w.pods.GetIndexer().GetByKey(name.String())
	if err != nil || !ok {
		return nil
	}
	if p := obj.(*corev1.Pod); isPod(p, uid) {
		return p
	}
	return nil
}

// isPod reports whether the kubelet calls the pod by this UID. A static pod's UID is the hash of its
// file; the object that stands for it in the API has a UID of its own, and the hash in an annotation.
func isPod(p *corev1.Pod, uid string) bool {
	return uid == "" || string(p.UID) == uid || p.Annotations[configHash] == uid
}

const configHash = "kubernetes.io/config.hash"

func (w *Watcher) addPod(p *corev1.Pod) *AddPod {
	out := &AddPod{UID: string(p.UID), Annotations: p.Annotations}
	out.Pod, out.Problems = ConvertPod(p)
	if obj, ok, err := w.spaces.GetIndexer().GetByKey(p.Namespace); err == nil && ok {
		ns := obj.(*corev1.Namespace)
		out.Namespace, _ = ConvertNamespace(ns)
		out.NamespaceAnnotations = ns.Annotations
	}
	return out
}

// PodLives reports whether the pod with that UID (any, when empty) exists, is on the node and has not
// finished. When in doubt it does: before everything was read, and for a pod that is not known while
// the API server does not answer.
func (w *Watcher) PodLives(name model.Name, uid, node string) bool {
	obj, ok, err := w.pods.GetIndexer().GetByKey(name.String())
	if err != nil {
		return true
	}
	s := w.Status()
	if !s.Synced || !s.Connected {
		// What is known now may be old: a pod that is gone here may have been made anew.
		if !ok {
			return true
		}
	}
	if !ok {
		return false
	}
	p := obj.(*corev1.Pod)
	return isPod(p, uid) && p.Spec.NodeName == node && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}
