// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore"
)

// stored is what the store of flow records takes and answers.
type stored struct {
	Records          uint64             `json:"records"`          // that came
	Kept             int                `json:"kept"`             // records on the disk: fewer where there are Coarse ones
	Coarse           int                `json:"coarse"`           // sums of several
	RecordsASecond   float64            `json:"recordsASecond"`   // until all were on the disk
	CPUMicroseconds  float64            `json:"cpuMicroseconds"`  // a record, of all threads but the sender's: with what the runtime does for both
	SenderMicros     float64            `json:"senderMicros"`     // a record, of the thread that makes it up, and messages as agents send them
	BytesARecord     float64            `json:"bytesARecord"`     // on the disk, a record that came
	MiB              float64            `json:"mib"`              // most resident memory, with the generator's
	QuestionMs       map[string]float64 `json:"questionMs"`       // with the files out of the page cache
	QuestionWarmMs   map[string]float64 `json:"questionWarmMs"`   // the same again
	QuestionCPUMs    map[string]float64 `json:"questionCpuMs"`    // of the first
	Answers          map[string]int     `json:"answers"`          // rows of each
	Lost             map[string]uint64  `json:"lost"`             // records, by why
	FilesBytesRecord map[string]float64 `json:"filesBytesRecord"` // which file has how many bytes a record
}

// storing says what is measured of it.
type storing struct {
	count, workloads int
	rate, pace       float64
	dir, profile     string
	memory, bytes    int64
	coarse           time.Duration
}

// measure adds records to a store, and asks it.
func (o storing) measure() (_ *stored, err error) {
	count, workloads, rate, pace, dir := o.count, o.workloads, o.rate, o.pace, o.dir
	if count < 1 || workloads < 2 || rate <= 0 || pace < 0 {
		return nil, fmt.Errorf("records and rates are above 0, and there are two workloads")
	}
	debug.SetMemoryLimit(o.memory)
	if dir == "" {
		if dir, err = os.MkdirTemp("", "weir-bench-flows-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
	}
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	t := newTraffic(workloads, began, time.Duration(float64(time.Second)/rate))
	end := began.Add(time.Duration(count) * t.every)
	s, err := flowstore.Open(flowstore.Options{Dir: dir, Age: end.Sub(began) + time.Hour, Bytes: o.bytes, CoarseAfter: o.coarse, CoarseEvery: flowstore.DefaultCoarseEvery, Records: flowstore.DefaultRecords, Every: time.Hour,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Now: func() time.Time { return end }})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := &stored{QuestionMs: map[string]float64{}, QuestionWarmMs: map[string]float64{}, QuestionCPUMs: map[string]float64{}, Answers: map[string]int{}}
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, err
		}
		defer pprof.StopCPUProfile()
	}
	cpu, start := cpuTime(unix.RUSAGE_SELF), time.Now()
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	sent := send(t, count, pace)
	for m := range sent.messages {
		if err := take(s, m); err != nil {
			return nil, err
		}
	}
	if sent.err != nil {
		return nil, sent.err
	}
	cancel()
	running.Wait()
	took := time.Since(start)
	st := s.Status()
	r.Records, r.Kept, r.Coarse, r.Lost = st.Added, st.Records, st.Coarse, st.Lost
	r.RecordsASecond = float64(st.Added) / took.Seconds()
	r.CPUMicroseconds = float64((cpuTime(unix.RUSAGE_SELF) - cpu - sent.cpu).Microseconds()) / float64(st.Added)
	r.SenderMicros = float64(sent.cpu.Microseconds()) / float64(st.Added)
	r.BytesARecord = float64(st.Bytes) / float64(st.Added)
	if r.FilesBytesRecord, err = files(dir, int(st.Added)); err != nil {
		return nil, err
	}
	if err := r.ask(s, t, dir, end, end.Sub(began)); err != nil {
		return nil, err
	}
	if r.MiB, err = mostResident(); err != nil {
		return nil, err
	}
	return r, nil
}

// ask asks the three questions.
func (r *stored) ask(s *flowstore.Store, t *traffic, dir string, end time.Time, span time.Duration) error {
	ctx := context.Background()
	middle := end.Add(-span / 2).Add(5 * time.Minute)
	rank := t.workloads[min(100, len(t.workloads)-1)]
	_, name, _ := strings.Cut(rank.pods[0].Workload, " ")
	for question, ask := range map[string]func() (int, error){
		"deniedRules": func() (int, error) {
			got, err := s.Rules(ctx, time.Time{}, time.Time{}, true)
			return len(got), err
		},
		"workloadTenMinutes": func() (n int, err error) {
			of := rank.namespace + "/" + name
			for _, f := range []flows.Filter{{From: of}, {To: of}} {
				f.Since, f.Until = middle.Add(-10*time.Minute), middle
				if err = s.Each(ctx, flowstore.Query{Filter: f}, func(*flows.Flow) bool { n++; return true }); err != nil {
					return n, err
				}
			}
			return n, nil
		},
		"twoNamespaces": func() (int, error) {
			got, err := s.Namespaces(ctx, time.Time{}, time.Time{}, t.workloads[0].namespace, rank.namespace)
			return len(got), err
		},
	} {
		if err := uncache(dir); err != nil {
			return err
		}
		cpu, start := cpuTime(unix.RUSAGE_SELF), time.Now()
		n, err := ask()
		if err != nil {
			return err
		}
		r.QuestionMs[question], r.QuestionCPUMs[question] = ms(time.Since(start)), ms(cpuTime(unix.RUSAGE_SELF)-cpu)
		start = time.Now()
		if r.Answers[question], err = ask(); err != nil || r.Answers[question] != n {
			return fmt.Errorf("%s: %d rows, then %d: %v", question, n, r.Answers[question], err)
		}
		r.QuestionWarmMs[question] = ms(time.Since(start))
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func cpuTime(of int) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(of, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// mostResident is in MiB.
func mostResident() (float64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, is := strings.CutPrefix(line, "VmHWM:"); is {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no VmHWM")
}

// uncache takes the store's files out of the page cache.
func uncache(dir string) error {
	return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}

// files says which file of the segments has how many bytes a record.
func files(dir string, records int) (map[string]float64, error) {
	of := map[string]float64{}
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		st, err := e.Info()
		if err == nil {
			of[filepath.Base(name)] += float64(st.Size()) / float64(records)
		}
		return err
	})
	return of, err
}
