// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// all runs what the result lacks, run by run.
func all(ctx context.Context, o options, bin string, tasks []task, rec *recorder) error {
	for n := 1; n <= o.repeat && ctx.Err() == nil; n++ {
		left := rec.begin(n, tasks)
		if len(left) == 0 {
			continue
		}
		if o.repeat > 1 {
			fmt.Printf("e2e: run %d of %d\n", n, o.repeat)
		}
		for _, together := range labs(left) {
			if err := inLab(ctx, o, bin, together, rec); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// inLab runs groups in one lab, which is removed in the end, also when ctx ends before.
func inLab(ctx context.Context, o options, bin string, tasks []task, rec *recorder) (err error) {
	began := time.Now()
	defer func() { rec.took(time.Since(began)) }()
	dir, err := os.MkdirTemp("", "weir-e2e-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l := &lab{name: o.lab, programs: bin, dir: dir}
	if !o.useExisting {
		if !o.keep {
			defer func() {
				if derr := l.down(); derr != nil && err == nil {
					err = fmt.Errorf("removing the lab %s: %w", l.name, derr)
				}
			}()
		}
		if err := l.up(ctx, tasks[0].group, o.settings, o.proxy); err != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
	return l.groups(ctx, tasks, o, rec)
}

// groups runs groups one after the other, those that are to run alongside others at the same time
// as the next.
func (l *lab) groups(ctx context.Context, tasks []task, o options, rec *recorder) error {
	var alongside sync.WaitGroup
	errs := make([]error, len(tasks))
	for i, t := range tasks {
		run := func() {
			if err := l.group(ctx, t, o, rec); err != nil {
				errs[i] = fmt.Errorf("group %s: %w", t.Name, err)
			}
		}
		if t.Alongside && i+1 < len(tasks) {
			alongside.Go(run)
			continue
		}
		if t.Procs == 1 {
			alongside.Wait()
		}
		if run(); errs[i] != nil {
			break
		}
	}
	alongside.Wait()
	return errors.Join(errs...)
}

// group runs the specs of one group, and then those that failed once more, to distinguish what
// fails each time from what fails now and then. A spec that failed has failed, whatever comes of it
// then.
func (l *lab) group(ctx context.Context, t task, o options, rec *recorder) error {
	if err := l.specs(ctx, t, t.Name, o, func(s spec) { rec.ended(s) }); err != nil {
		return err
	}
	again := rec.failed(t)
	if len(again) == 0 || len(again) > maxAgain || ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Printf("e2e: group %s, %d specs that failed once more, one at a time\n", t.Name, len(again))
	t.Specs, t.Procs = again, 1
	return l.specs(ctx, t, t.Name+"-again", o, rec.again)
}

// maxAgain: where more than this fail, something else is wrong.
const maxAgain = 12
