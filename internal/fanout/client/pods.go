// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

const (
	// podWithin is how long PodForAdd waits for the fan-out to send a pod: the kubelet learns of it
	// from the API server when the fan-out does.
	podWithin = 10 * time.Second
	// askEvery is the time between two questions about a pod, lookupEvery that between two
	// look-ups.
	askEvery    = 50 * time.Millisecond
	lookupEvery = 2 * time.Second
	// answerFor is how long an answer counts: an ADD asks twice.
	answerFor = 5 * time.Second
	// mostAsking and mostAnswers bound what is kept.
	mostAsking, mostAnswers = 64, 1024
)

// ErrPodWaits says that a pod is not started because no fan-out has sent what selects it.
var ErrPodWaits = errors.New("the policies of the pod are not known")

// podKey is a pod as the kubelet knows it.
type podKey struct {
	name model.Name
	uid  string // empty = any
}

// questions are those about pods. The client's mutex guards them.
type questions struct {
	asking  []podKey // that are to be sent
	asked   map[podKey]time.Time
	answers map[podKey]podAnswer
}

type podAnswer struct {
	pod   *watch.AddPod // without its Pod; never changed
	until time.Time
}

// take returns what is to be asked now.
func (q *questions) take() (out []*stream.PodQuestion) {
	for _, k := range q.asking {
		out = append(out, &stream.PodQuestion{Namespace: []byte(k.name.Namespace), Name: []byte(k.name.Name), Uid: []byte(k.uid)})
	}
	q.asking = nil
	return out
}

// ask has a fan-out asked about a pod, unless it was a moment ago.
func (q *questions) ask(k podKey, now time.Time) bool {
	if now.Sub(q.asked[k]) < askEvery || len(q.asking) == mostAsking {
		return false
	}
	if q.asked == nil || len(q.asked) >= mostAnswers {
		q.asked = map[podKey]time.Time{}
	}
	q.asked[k] = now
	q.asking = append(q.asking, k)
	return true
}

// answer returns what a fan-out said of a pod.
func (q *questions) answer(k podKey, now time.Time) *watch.AddPod {
	if a, ok := q.answers[k]; ok && now.Before(a.until) {
		return a.pod
	}
	return nil
}

// note keeps an answer to what was asked. That there is no such pod is not kept: there may be one
// in a moment.
func (q *questions) note(a *stream.PodAnswer, now time.Time) {
	k := podKey{model.Name{Namespace: string(a.GetQuestion().GetNamespace()), Name: string(a.GetQuestion().GetName())}, string(a.GetQuestion().GetUid())}
	if _, asked := q.asked[k]; !asked || len(a.Uid) == 0 {
		return
	}
	if q.answers == nil || len(q.answers) >= mostAnswers {
		q.answers = map[podKey]podAnswer{}
	}
	found := podAnswer{until: now.Add(answerFor), pod: &watch.AddPod{UID: string(a.Uid), Annotations: stream.TextsOf(a.Annotations),
		Namespace:            &model.Namespace{Name: k.name.Namespace, Labels: stream.TextsOf(a.NamespaceLabels)},
		NamespaceAnnotations: stream.TextsOf(a.NamespaceAnnotations)}}
	q.answers[k] = found
	q.answers[podKey{name: k.name}] = found // the same pod, asked for by its name alone
}

// notePods keeps answers.
func (c *Client) notePods(answers []*stream.PodAnswer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range answers {
		c.questions.note(a, time.Now())
	}
}

// PodForAdd returns the pod of a CNI ADD. Its annotations are asked of the fan-out, and of the API
// server where the fan-out does not know the pod or none answers. The pod itself is the one that
// was handed on, together with the policies that select it: a pod for which these are not there
// would start without them, so it waits, and in the end is refused (ErrPodWaits). Where the API
// server says that there is no such pod its error is returned.
func (c *Client) PodForAdd(ctx context.Context, name model.Name, uid string) (*watch.AddPod, error) {
	ctx, cancel := context.WithTimeout(ctx, podWithin)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	lookups := make(chan lookup, 1)
	lookAt := time.Now().Add(c.cfg.LookupAfter)
	var found *watch.AddPod // by the API server
	var failed error
	for key := (podKey{name, uid}); ; {
		if p := c.handedOn(key, found); p != nil {
			return p, nil
		}
		if now := time.Now(); found == nil && !now.Before(lookAt) {
			lookAt = now.Add(podWithin) // until this one ends
			go func() {
				p, err := c.cfg.Lookup(ctx, name, uid)
				lookups <- lookup{p, err}
			}()
		}
		select {
		case <-ctx.Done():
			why := cmp.Or(c.Status().Err, "it has not seen the pod")
			if found == nil && failed != nil {
				why += "; the API server: " + failed.Error()
			}
			return nil, fmt.Errorf("%w: no fan-out has sent them (%s)", ErrPodWaits, why)
		case l := <-lookups:
			if apierrors.IsNotFound(l.err) || errors.Is(l.err, watch.ErrPodReplaced) {
				return nil, l.err
			}
			found, failed, lookAt = l.pod, l.err, time.Now().Add(lookupEvery)
		case <-tick.C:
		}
	}
}

type lookup struct {
	pod *watch.AddPod
	err error
}

// handedOn returns the pod of an ADD where all of it is there, and has the fan-out asked where its
// annotations are not. found is what the API server said; nil = nothing yet.
func (c *Client) handedOn(key podKey, found *watch.AddPod) *watch.AddPod {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	answer := c.questions.answer(key, now)
	if answer == nil {
		if c.err == "" && c.questions.ask(key, now) {
			signal(c.ask)
		}
		answer = found
	}
	if answer == nil {
		return nil
	}
	p := c.own[key.name]
	if p == nil || p.UID != answer.UID {
		return nil
	}
	out := *answer
	out.Pod = p
	return &out
}

// Hold gives the client the pods of the node, with whose policies another source has come, until a
// fan-out sends any.
func (c *Client) Hold(pods map[model.Name]*model.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.synced && pods != nil {
		c.own = pods
	}
}
