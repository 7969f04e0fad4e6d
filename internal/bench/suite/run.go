package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/bench/result"
)

// Progress is told how a run gets on.
type Progress interface {
	Say(line string)                                        // what happened
	Begin(n, of, round int, row string, left time.Duration) // a measurement begins
	End(row string, figure string)
}

// Run measures. It removes all that it made, also when ctx ends; what was measured by then is in the file, which is
// nil only when nothing was. save is called after each round.
func Run(ctx context.Context, c *Cluster, o Options, p Progress, save func(*result.File) error) (*result.File, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	rows, err := plan(&o)
	if err != nil {
		return nil, err
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
	expected *= time.Duration(o.Rounds * len(o.Services))
	p.Say(fmt.Sprintf("client on %s, server on %s; %d rows, %d rounds, about %s", s.client, s.server, len(rows), o.Rounds, expected.Round(time.Second)))
	f, err := func() (*result.File, error) {
		// Pods end by themselves should this program be killed.
		if err := s.build(ctx, rows, 2*expected+30*time.Minute); err != nil {
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
	if s.namespace != "" {
		p.Say("removing the namespace " + s.namespace)
	}
	return f, errors.Join(err, s.remove(ctx))
}

// cost is how long a measurement takes, about.
func cost(s probe.Spec) time.Duration {
	d := s.Duration + s.WarmUp + 700*time.Millisecond
	if s.Count > 0 && s.Duration == 0 {
		d += 3 * time.Second
	}
	return d
}

// measureAll goes through the sizes, and through the rows in turns: forwards in one round and backwards in the next, so that a slow
// minute hits all alike.
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
