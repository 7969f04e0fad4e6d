// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Case is one thing to measure in one configuration.
type Case struct {
	Row, Configuration string
	Run                func(ctx context.Context) (Run, error)
}

// Outcome are the runs of a case, in the order of the rounds.
type Outcome struct {
	Case
	Kept      []Run
	Dropped   int // runs that others disturbed, and that do not count
	Disturbed int // the same, among Kept for lack of better ones
}

// Rounds says how cases take turns.
type Rounds struct {
	Count int // runs to keep of each case
	// Others is how many CPUs something else may keep busy in a run that is kept.
	Others float64
	// Fill is how many runs a case has in any case: its least disturbed ones count where there are
	// fewer undisturbed.
	Fill int
	// Extra is how many further rounds may be made for runs that were dropped.
	Extra int
	// Quiet is how long to wait before a run for the machine to have nothing else to do; then it is
	// run all the same.
	Quiet time.Duration
	// Retry is how often a run that failed is made again.
	Retry int
	// Say reports each run; nil for nobody.
	Say func(round int, c Case, r Run, verdict string)
}

// Interleave runs every case once a round, forwards in one round and backwards in the next, so that
// a slow minute and what a case leaves behind hit all alike. Runs that others disturbed are dropped
// and made up for in further rounds.
func (o Rounds) Interleave(ctx context.Context, cases []Case) ([]Outcome, error) {
	out := make([]Outcome, len(cases))
	spare := make([][]Run, len(cases))
	order := make([]int, len(cases))
	for i, c := range cases {
		out[i].Case, order[i] = c, i
	}
	for round := range o.Count + o.Extra {
		for _, i := range order {
			if len(out[i].Kept) >= o.Count {
				continue
			}
			if err := AwaitQuiet(ctx, o.Others, o.Quiet); err != nil {
				return out, err
			}
			r, err := o.attempt(ctx, cases[i])
			if err != nil {
				return out, err
			}
			verdict := "kept"
			if r.Others > o.Others {
				verdict = "dropped"
				out[i].Dropped++
				spare[i] = append(spare[i], r)
			} else {
				out[i].Kept = append(out[i].Kept, r)
			}
			if o.Say != nil {
				o.Say(round+1, cases[i], r, verdict)
			}
		}
		slices.Reverse(order)
	}
	for i := range out {
		slices.SortFunc(spare[i], func(a, b Run) int { return cmp.Compare(a.Others, b.Others) })
		for len(out[i].Kept) < o.Fill && len(spare[i]) > 0 {
			out[i].Kept, spare[i] = append(out[i].Kept, spare[i][0]), spare[i][1:]
			out[i].Dropped--
			out[i].Disturbed++
		}
	}
	return out, nil
}

// attempt runs a case, again after a failure.
func (o Rounds) attempt(ctx context.Context, c Case) (Run, error) {
	var errs []error
	for range o.Retry + 1 {
		r, err := c.Run(ctx)
		if err == nil {
			return r, nil
		}
		errs = append(errs, err)
		select {
		case <-ctx.Done():
			return Run{}, context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
	return Run{}, fmt.Errorf("%s, %s: %w", c.Row, c.Configuration, errors.Join(errs...))
}

// AwaitQuiet waits until the machine keeps at most so many CPUs busy, but no longer than limit.
func AwaitQuiet(ctx context.Context, cpus float64, limit time.Duration) error {
	for start := time.Now(); time.Since(start) < limit; {
		w, err := Open()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
		var r Run
		if err := w.Close(&r, 0); err != nil {
			return err
		}
		if r.Others <= cpus {
			return nil
		}
	}
	return ctx.Err()
}
