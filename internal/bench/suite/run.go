// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/bench/result"
)

// Progress is informed of how a run gets on.
type Progress interface {
	Say(line string)                                        // what happened
	Begin(n, of, round int, row string, left time.Duration) // a measurement begins
	End(row string, figure string)
}

// Run measures. It removes all that it made, also when ctx ends; what was measured by then is in
// the file, which is nil only when nothing was. save is called after each round.
func Run(ctx context.Context, c *Cluster, o Options, p Progress, save func(*result.File) error) (*result.File, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	rows, err := plan(&o)
	if err != nil {
		return nil, err
	}
	if o.Policies > 0 && !slices.ContainsFunc(rows, func(r planned) bool { return isControl(r.spec.Test) }) {
		return nil, errors.New("other policies bind the server of control/policy, so only rows of the control plane are measured with them: add some (--rows control), or leave --policies out")
	}
	s := &site{Cluster: c, o: &o, say: p.Say}
	nodes, err := s.chooseNodes(ctx)
	if err != nil {
		return nil, err
	}
	if s.oneNode {
		// On one node a path is the same as its local one.
		all := slices.Clone(rows)
		rows = slices.DeleteFunc(rows, func(r planned) bool {
			path, test, _ := strings.Cut(r.id, "/")
			return slices.ContainsFunc(all, func(o planned) bool { return o.id == path+result.OneNode+"/"+test })
		})
	}
	expected := time.Duration(0)
	for _, r := range rows {
		expected += cost(r.spec)
	}
	expected = expected*time.Duration(o.Rounds*len(o.Services)) + growing(&o)
	p.Say(fmt.Sprintf("client on %s, server on %s; %d rows, %d rounds, about %s", s.client, s.server, len(rows), o.Rounds, expected.Round(time.Second)))
	f, err := func() (*result.File, error) {
		// Pods end by themselves should this program be killed, and not before even on a slow
		// cluster.
		if err := s.build(ctx, rows, 4*expected+time.Duration(len(o.Services))*settling); err != nil {
			return nil, err
		}
		f, err := s.describe(ctx, len(nodes), rows)
		if err != nil {
			return nil, err
		}
		if err := s.reachable(ctx, rows); err != nil {
			return nil, err
		}
		return f, s.measureAll(ctx, f, rows, p, save)
	}()
	if f != nil && err != nil {
		f.Interrupted = err.Error()
	}
	if f != nil {
		f.Finish()
	}
	if err == nil {
		err = worked(f)
	}
	return f, errors.Join(err, s.remove(ctx))
}

// worked returns an error when there are rows of which no round succeeded.
func worked(f *result.File) error {
	var failed []string
	for i := range f.Rows {
		r := &f.Rows[i]
		if !slices.ContainsFunc(r.Rounds, func(x result.Round) bool { return x.Error == "" }) {
			failed = append(failed, r.Key())
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("no round succeeded of %s", strings.Join(failed, ", "))
	}
	return nil
}

// cost is how long a measurement takes, about.
func cost(s probe.Spec) time.Duration {
	d := s.Duration + s.WarmUp + 700*time.Millisecond
	if s.Duration > 0 {
		return d
	}
	each := map[probe.Test]time.Duration{probe.HTTP: 300 * time.Microsecond, probe.Apache: 100 * time.Microsecond,
		// 1.5 s are between two changes.
		probe.Endpoint: 1600 * time.Millisecond, probe.Policy: 1600 * time.Millisecond, probe.PodStart: 4 * time.Second}
	return d + time.Duration(s.Count)*each[s.Test]
}

// growing is how long it takes to make the other Services, each of two objects, and policies, at
// 200 objects a second.
func growing(o *Options) time.Duration {
	return time.Duration(2*slices.Max(o.Services)+o.Policies) * 5 * time.Millisecond
}

// measureAll goes through the sizes, and through the rows in turns: forwards in one round and
// backwards in the next, so that a slow minute hits all alike.
func (s *site) measureAll(ctx context.Context, f *result.File, rows []planned, p Progress, save func(*result.File) error) error {
	total := s.o.Rounds * len(s.o.Services) * len(rows)
	done, began, planCost := 0, time.Now(), time.Duration(0)
	remaining := time.Duration(0)
	for _, r := range rows {
		remaining += cost(r.spec) * time.Duration(s.o.Rounds*len(s.o.Services))
	}
	for _, size := range s.o.Services {
		if err := s.grow(ctx, size); err != nil {
			return err
		}
		first := len(f.Rows)
		for _, r := range rows {
			f.Rows = append(f.Rows, result.Row{ID: r.id, Title: r.title, Services: size, Spec: s.spec(r)})
		}
		order := make([]int, len(rows))
		for i := range order {
			order[i] = i
		}
		for round := 1; round <= s.o.Rounds; round++ {
			for _, i := range order {
				row := &f.Rows[first+i]
				// What is left is what was planned, by as much slower or faster as it went so far.
				left := remaining
				if planCost > 0 {
					left = time.Duration(float64(remaining) * float64(time.Since(began)) / float64(planCost))
				}
				p.Begin(done+1, total, round, row.Key(), left)
				x := s.once(ctx, rows[i], row.Spec, round)
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				row.Rounds = append(row.Rounds, x)
				if x.Error != "" {
					if err := s.standing(ctx); err != nil {
						return err
					}
				}
				done++
				planCost += cost(rows[i].spec)
				remaining -= cost(rows[i].spec)
				p.End(row.Key(), row.Figure(&x))
			}
			slices.Reverse(order)
			f.Finish()
			if err := save(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// standing returns an error when a pod of the run has ended: then nothing more can be measured.
func (s *site) standing(ctx context.Context) error {
	for name := range s.at {
		p, err := s.Kube.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("the pod %s is gone", name)
		case err == nil && p.Status.Phase != corev1.PodRunning:
			why := ""
			if p.Status.Reason != "" {
				why = " (" + p.Status.Reason + ")"
			}
			return fmt.Errorf("the pod %s is %s%s", name, p.Status.Phase, why)
		}
	}
	return nil
}

// once makes one measurement; its failure is part of the result.
func (s *site) once(ctx context.Context, r planned, spec probe.Spec, round int) result.Round {
	x := result.Round{Round: round, At: time.Now().UTC().Truncate(time.Millisecond)}
	var before map[string][]probe.Daemon
	var err error
	if isControl(spec.Test) {
		if before, err = s.daemons(ctx); err != nil {
			x.Error = err.Error()
			return x
		}
	}
	if x.Result, err = s.probe(ctx, r.from, spec); err != nil {
		x.Error = err.Error()
		return x
	}
	if before != nil {
		after, err := s.daemons(ctx)
		if err != nil {
			x.Error = err.Error()
			return x
		}
		x.Daemons = used(before, after)
	}
	return x
}

// daemons reads what the daemons of the network have used on the two nodes.
func (s *site) daemons(ctx context.Context) (map[string][]probe.Daemon, error) {
	out := map[string][]probe.Daemon{}
	for node, pod := range map[string]string{s.client: podClientHost, s.server: podServerHost} {
		n, err := s.node(ctx, pod)
		if err != nil {
			return nil, err
		}
		out[node] = n.Daemons
	}
	return out, nil
}

// used is the CPU time between two looks, and the memory at the second.
func used(before, after map[string][]probe.Daemon) map[string][]probe.Daemon {
	out := map[string][]probe.Daemon{}
	for node, all := range after {
		for _, d := range all {
			i := slices.IndexFunc(before[node], func(b probe.Daemon) bool { return b.Name == d.Name })
			if i >= 0 && before[node][i].CPU <= d.CPU { // otherwise it was restarted
				d.CPU -= before[node][i].CPU
			}
			out[node] = append(out[node], d)
		}
	}
	return out
}
