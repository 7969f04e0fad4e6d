// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// load is how many objects change each second.
type load struct {
	name                            string
	pods, slices, policies, relabel int
	everyone                        int  // policies whose peers are all pods, which come and go
	short                           bool // it is measured for half of the time
}

// loads are the rows that are measured, in two parts: what follows heavy ones may suffer from them.
func (s *site) loads() (light, heavy []load) {
	light = []load{{name: "idle"}}
	if !s.brief {
		light = append(light, load{name: "10 slices", slices: 10, short: true}, load{name: "1 policy", policies: 1, short: true},
			load{name: "1 namespace", relabel: 1, short: true}, load{name: "1 policy of all pods", everyone: 1, short: true})
	}
	for _, r := range s.rates {
		l := podLoad(r)
		if r < 50 {
			light = append(light, l)
		} else {
			heavy = append(heavy, l)
		}
	}
	if !s.brief {
		heavy = append(heavy, load{name: "all kinds", pods: 100, slices: 10, policies: 1, short: true})
	}
	unwanted := func(l load) bool { return len(s.only) > 0 && !slices.Contains(s.only, l.name) }
	return slices.DeleteFunc(light, unwanted), slices.DeleteFunc(heavy, unwanted)
}

func podLoad(rate int) load { return load{name: fmt.Sprintf("%d pods", rate), pods: rate} }

// kind is the one kind of object that a load changes, as in running.done; -1 = none, or several.
func (l load) kind() int {
	kind := -1
	for i, rate := range []int{l.pods, l.slices, l.policies, l.relabel, l.everyone} {
		switch {
		case rate > 0 && kind >= 0:
			return -1
		case rate > 0:
			kind = i
		}
	}
	return kind
}

// workers bound the calls of a load that are under way.
const workers = 24

// running is a load that goes on.
type running struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup
	done   [5]atomic.Int64 // pods, slices, policies, namespaces, policies of all pods
	failed atomic.Int64
	mu     sync.Mutex
	err    error
}

// begin starts a load.
func (s *site) beginLoad(l load) *running {
	r := &running{}
	ctx, cancel := context.WithCancel(s.ctx)
	r.cancel = cancel
	for kind, each := range []struct {
		rate   int
		change func(context.Context, *rand.Rand) error
	}{{l.pods, s.changePod}, {l.slices, s.changeSlice}, {l.policies, s.changePolicy}, {l.relabel, s.changeSpace}, {l.everyone, s.changeEveryone}} {
		if each.rate == 0 {
			continue
		}
		jobs := make(chan struct{}, each.rate) // what the API server does not take within a second is not made up for
		r.wait.Go(func() {
			tick := time.NewTicker(time.Second / time.Duration(each.rate))
			defer tick.Stop()
			defer close(jobs)
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				select {
				case jobs <- struct{}{}:
				default:
				}
			}
		})
		for worker := range min(workers, each.rate) {
			r.wait.Go(func() {
				random := rand.New(rand.NewPCG(s.seed, uint64(time.Now().UnixNano())+uint64(worker)))
				for range jobs {
					if ctx.Err() != nil {
						continue
					}
					if err := each.change(ctx, random); err == nil {
						r.done[kind].Add(1)
					} else if ctx.Err() == nil {
						r.failed.Add(1)
						r.mu.Lock()
						r.err = err
						r.mu.Unlock()
					}
				}
			})
		}
	}
	return r
}

func (r *running) end() error {
	r.cancel()
	r.wait.Wait()
	if n := r.failed.Load(); n > 0 {
		return fmt.Errorf("%d changes of the load failed, among them: %w", n, r.err)
	}
	return nil
}

// changePod gives a pod of another node another label that rules look at.
func (s *site) changePod(ctx context.Context, r *rand.Rand) error {
	p := s.pods[podsOfOurs+r.IntN(len(s.pods)-podsOfOurs)]
	_, err := s.kube.CoreV1().Pods(p.space).Patch(ctx, p.name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q,"turn":"t%d"}}}`, appName(r.IntN(apps)), r.Uint32()), metav1.PatchOptions{})
	return err
}

// changeSlice has one endpoint of a Service become ready, or no longer.
func (s *site) changeSlice(ctx context.Context, r *rand.Rand) error {
	i := r.IntN(s.services)
	_, err := s.kube.DiscoveryV1().EndpointSlices(spaceName(i%namespaces)).Patch(ctx, fmt.Sprintf("s%d-00000", i), types.JSONPatchType,
		fmt.Appendf(nil, `[{"op":"replace","path":"/endpoints/%d/conditions/ready","value":%v}]`, r.IntN(20), r.IntN(2) == 0), metav1.PatchOptions{})
	return err
}

// changePolicy gives a rule another port.
func (s *site) changePolicy(ctx context.Context, r *rand.Rand) error {
	i := r.IntN(s.policies)
	_, err := s.kube.NetworkingV1().NetworkPolicies(spaceName(i%namespaces)).Patch(ctx, fmt.Sprint("p", i), types.JSONPatchType,
		fmt.Appendf(nil, `[{"op":"replace","path":"/spec/ingress/%d/ports/0/port","value":%d}]`, 1+r.IntN(9), 8000+r.IntN(100)), metav1.PatchOptions{})
	return err
}

// changeSpace gives a namespace the label of another one.
func (s *site) changeSpace(ctx context.Context, r *rand.Rand) error {
	_, err := s.kube.CoreV1().Namespaces().Patch(ctx, spaceName(r.IntN(namespaces)), types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:"team%d"}}}`, teamLabel, r.IntN(namespaces)), metav1.PatchOptions{})
	return err
}

// changeEveryone makes a policy by which all pods of the cluster reach the pods of a namespace, and
// removes it the next time. One worker calls it.
func (s *site) changeEveryone(ctx context.Context, r *rand.Rand) error {
	if s.everyone != nil {
		return s.removeEveryone(ctx)
	}
	p := s.policyOfAll(spaceName(r.IntN(namespaces)), "everyone", metav1.LabelSelector{})
	if _, err := s.kube.NetworkingV1().NetworkPolicies(p.Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return err
	}
	s.everyone = p
	return nil
}

func (s *site) removeEveryone(ctx context.Context) error {
	p := s.everyone
	s.everyone = nil
	return s.kube.NetworkingV1().NetworkPolicies(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{})
}

// endEveryone removes the one that is left when the load has ended.
func (s *site) endEveryone() error {
	if s.everyone == nil {
		return nil
	}
	return s.removeEveryone(s.ctx)
}

// measureRow measures what a load costs, and then, while it goes on, how long changes take.
func (s *site) measureRow(l load, fed bool) Row {
	// What the row before has left to do is not of this one.
	time.Sleep(3 * time.Second)
	s.awaitQuiet()
	r := s.beginLoad(l)
	time.Sleep(time.Second)
	before := s.standInsNow(fed)
	var done [len(r.done)]int64
	for i := range done {
		done[i] = r.done[i].Load()
	}
	began := time.Now()
	span := s.span
	if l.short {
		span /= 2
	}
	w := s.openWindow()
	if s.profile != "" && l.pods >= 100 && l.slices == 0 {
		s.profileAll(map[bool]string{true: "fed", false: "direct"}[fed]+"-load", span)
	} else {
		time.Sleep(span)
	}
	row := s.closeWindow(w, l.name)
	row.PodsPerSecond = float64(r.done[0].Load()-done[0]) / time.Since(began).Seconds()
	if kind := l.kind(); fed && kind >= 0 {
		if n := r.done[kind].Load() - done[kind]; n > 0 {
			row.BytesPerChange = float64(s.standInsNow(fed).Bytes-before.Bytes) / float64(n) / float64(s.nodes-1)
		}
	}
	if s.probe.written = map[string]int64{}; fed {
		s.must(ask("http://"+standInsAddr+"/seen", &map[string][]int64{})) // those of before
	}
	s.awaitQuiet()
	w = s.openWindow()
	latency := s.measureEffect(fed, span)
	during := s.closeWindow(w, l.name)
	row.Effect, row.Received, row.BusyDuring, row.ForeignDuring = latency.effect, latency.received, during.Busy, during.Foreign
	row.Missed, row.Marks = latency.missed, latency.marks
	after := s.standInsNow(fed)
	row.StreamsLost, row.Snapshots = after.Lost-before.Lost, after.Snapshots-before.Snapshots
	if err := errors.Join(r.end(), s.endEveryone()); err != nil {
		row.LoadError = err.Error()
	}
	say("%s", row)
	return row
}

// mostForeign is how many CPUs others may keep busy in a measurement.
const mostForeign = 0.3

// awaitQuiet waits until others leave the machine alone, but no longer than is asked for.
func (s *site) awaitQuiet() {
	for end := time.Now().Add(s.quiet); time.Now().Before(end); {
		if s.foreign(time.Second) <= mostForeign {
			return
		}
	}
}

// standInsNow is how the stand-ins get on, where there are any.
func (s *site) standInsNow(fed bool) standInState {
	if !fed {
		return standInState{}
	}
	st, err := s.standInState()
	s.must(err)
	return st
}

// latency is how long changes took, ms.
type latency struct {
	effect, received map[string]*sample
	missed, marks    int
}

// measureEffect makes changes one after the other for a time.
func (s *site) measureEffect(fed bool, span time.Duration) latency {
	out := latency{effect: map[string]*sample{}, received: map[string]*sample{}}
	kinds := []struct {
		name string
		f    func() (time.Duration, error)
	}{{"pod", s.probe.label}, {"policy", s.probe.port}, {"slice", s.probe.endpoint}}
	var errs []error
	for end, i := time.Now().Add(span), 0; time.Now().Before(end) || i < len(kinds); i++ {
		k := kinds[i%len(kinds)]
		took, err := k.f()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		add(out.effect, k.name, took.Seconds()*1000)
		add(out.effect, "all", took.Seconds()*1000)
		time.Sleep(100 * time.Millisecond)
	}
	if len(errs) > 0 {
		say("%d probes failed: %v", len(errs), errors.Join(errs...))
		out.missed += len(errs)
	}
	if !fed {
		return out
	}
	time.Sleep(2 * time.Second) // the last ones arrive
	seen := map[string][]int64{}
	s.must(ask("http://"+standInsAddr+"/seen", &seen))
	for mark, began := range s.probe.written {
		out.marks++
		arrived := seen[mark]
		if len(arrived) < s.nodes-1 {
			out.missed++
		}
		last := 0.0
		for _, at := range arrived {
			ms := float64(at-began) / 1e6
			add(out.received, "each", ms)
			last = max(last, ms)
		}
		if len(arrived) > 0 {
			add(out.received, "all", last)
		}
	}
	return out
}

func add(to map[string]*sample, name string, ms float64) {
	if to[name] == nil {
		to[name] = &sample{}
	}
	to[name].raw = append(to[name].raw, ms)
}
