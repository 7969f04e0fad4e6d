// SPDX-License-Identifier: Apache-2.0

// Command flows measures the store of flow records: records a second in, bytes a record on the
// disk, memory, and three questions over all of it, each with its files out of the page cache. The
// records are made up: 2,000 workloads, pairs by Zipf's law, random source ports and clients.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore"
	"github.com/weir-net/weir/internal/version"
)

// result is the file that is written.
type result struct {
	Version          string             `json:"version"`
	CPUs             int                `json:"cpus"`
	Records          uint64             `json:"records"`
	RecordsASecond   float64            `json:"recordsASecond"`   // until all were on the disk
	CPUMicroseconds  float64            `json:"cpuMicroseconds"`  // of all threads, a record, with what makes it up
	BytesARecord     float64            `json:"bytesARecord"`     // on the disk
	MiB              float64            `json:"mib"`              // most resident memory, with the generator's
	QuestionMs       map[string]float64 `json:"questionMs"`       // with the files out of the page cache
	QuestionWarmMs   map[string]float64 `json:"questionWarmMs"`   // the same again
	QuestionCPUMs    map[string]float64 `json:"questionCpuMs"`    // of the first
	Answers          map[string]int     `json:"answers"`          // rows of each
	Lost             map[string]uint64  `json:"lost"`             // records, by why
	FilesBytesRecord map[string]float64 `json:"filesBytesRecord"` // which file has how many bytes a record
}

func main() {
	count := flag.Int("records", 1_000_000, "how many `records`")
	workloads := flag.Int("workloads", 2000, "how many `workloads`")
	rate := flag.Float64("rate", 100e6/86400, "`records` in a second of their own time")
	pace := flag.Float64("pace", 0, "`records` a second that are added; 0 = as fast as the store takes them")
	dir := flag.String("dir", "", "`folder` of the store (default: a temporary one)")
	out := flag.String("out", "", "`file` for the result (default: standard output alone)")
	limit := flag.Int64("memory", 400<<20, "memory limit of the Go runtime, which is that of the Deployment, in `bytes`")
	flag.Parse()
	if err := run(*count, *workloads, *rate, *pace, *dir, *out, *limit); err != nil {
		fmt.Fprintln(os.Stderr, "flows:", err)
		os.Exit(1)
	}
}

func run(count, workloads int, rate, pace float64, dir, out string, limit int64) (err error) {
	if count < 1 || workloads < 2 || rate <= 0 || pace < 0 {
		return fmt.Errorf("records and rates are above 0, and there are two workloads")
	}
	debug.SetMemoryLimit(limit)
	if dir == "" {
		if dir, err = os.MkdirTemp("", "weir-bench-flows-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	t := newTraffic(workloads, began, time.Duration(float64(time.Second)/rate))
	end := began.Add(time.Duration(count) * t.every)
	s, err := flowstore.Open(flowstore.Options{Dir: dir, Age: end.Sub(began) + time.Hour, Bytes: 1 << 40, Records: flowstore.DefaultRecords, Every: time.Hour,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Now: func() time.Time { return end }})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := result{Version: version.Version, CPUs: runtime.GOMAXPROCS(0), QuestionMs: map[string]float64{}, QuestionWarmMs: map[string]float64{}, QuestionCPUMs: map[string]float64{}, Answers: map[string]int{}}
	cpu, start := cpuTime(), time.Now()
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	batch := make([]*flows.Flow, 0, 1000)
	for i := 0; i < count; i += len(batch) {
		batch = batch[:0]
		for len(batch) < min(cap(batch), count-i) {
			batch = append(batch, t.next())
		}
		if pace > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(float64(i) / pace * float64(time.Second)))))
		} else {
			for s.Status().Memory > 2*flowstore.DefaultRecords-cap(batch) {
				time.Sleep(time.Millisecond)
			}
		}
		s.Add(batch...)
	}
	cancel()
	running.Wait()
	took := time.Since(start)
	st := s.Status()
	r.Records, r.Lost = st.Added, st.Lost
	r.RecordsASecond = float64(st.Added) / took.Seconds()
	r.CPUMicroseconds = float64((cpuTime() - cpu).Microseconds()) / float64(st.Added)
	r.BytesARecord = float64(st.Bytes) / float64(st.Records)
	if r.FilesBytesRecord, err = files(dir, st.Records); err != nil {
		return err
	}
	if err := r.ask(s, t, dir, end, end.Sub(began)); err != nil {
		return err
	}
	if r.MiB, err = mostResident(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	if out == "" {
		return nil
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

// ask asks the three questions.
func (r *result) ask(s *flowstore.Store, t *traffic, dir string, end time.Time, span time.Duration) error {
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
		cpu, start := cpuTime(), time.Now()
		n, err := ask()
		if err != nil {
			return err
		}
		r.QuestionMs[question], r.QuestionCPUMs[question] = ms(time.Since(start)), ms(cpuTime()-cpu)
		start = time.Now()
		if r.Answers[question], err = ask(); err != nil || r.Answers[question] != n {
			return fmt.Errorf("%s: %d rows, then %d: %v", question, n, r.Answers[question], err)
		}
		r.QuestionWarmMs[question] = ms(time.Since(start))
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
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
