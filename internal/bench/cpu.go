// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// userHZ is the unit of /proc/stat: clock ticks a second (USER_HZ, 100 on every architecture of
// ours).
const userHZ = 100

// CPUTime is what all CPUs of the machine have spent since boot. Time stolen by a hypervisor is not
// in it.
type CPUTime struct {
	Busy time.Duration // on anything, interrupts included; the network's work for other processes is in it
	User time.Duration // on programs' own instructions
}

// ReadCPU reads /proc/stat.
func ReadCPU() (CPUTime, error) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return CPUTime{}, fmt.Errorf("reading the machine's CPU time: %w", err)
	}
	defer f.Close()
	return parseCPU(f)
}

func parseCPU(r io.Reader) (CPUTime, error) {
	for sc := bufio.NewScanner(r); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) < 8 || fields[0] != "cpu" {
			continue
		}
		var ticks [8]time.Duration // from 1: user nice system idle iowait irq softirq
		for i := 1; i < len(ticks); i++ {
			n, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				return CPUTime{}, fmt.Errorf("reading the machine's CPU time: %w", err)
			}
			ticks[i] = time.Duration(n) * time.Second / userHZ
		}
		user := ticks[1] + ticks[2]
		return CPUTime{Busy: user + ticks[3] + ticks[6] + ticks[7], User: user}, nil
	}
	return CPUTime{}, fmt.Errorf("reading the machine's CPU time: no line \"cpu\" in /proc/stat")
}

// Run is what one run of a client brought, as it prints it.
type Run struct {
	Kind    string  `json:"kind"`           // requests, roundtrips, stream, datagrams
	Times   Summary `json:"times"`          // µs, of requests and round trips
	Gbits   float64 `json:"gbits"`          // Gbit/s of the stream
	CPUPer  float64 `json:"cpu_s_per_gb"`   // stream: CPU seconds of the whole machine for 10^9 bytes, less Others; datagrams: of client and server
	Held    float64 `json:"held,omitempty"` // datagrams: which share of the rate was sent
	Lost    float64 `json:"lost,omitempty"` // datagrams: which share of these did not arrive
	Elapsed float64 `json:"elapsed_s"`      // of what was timed
	Own     float64 `json:"own_cpu_s"`      // CPU time of client and server
	Busy    float64 `json:"busy_cpu_s"`     // CPU time of the whole machine meanwhile
	User    float64 `json:"user_cpu_s"`     // the part of it that is not the kernel\'s
	Raw     string  `json:"-"`              // file with the single times, where there is one
	Others  float64 `json:"others_cpus"`    // CPUs that something else kept busy, on average
}

// Window measures the machine around something that is timed.
type Window struct {
	start time.Time
	cpu   CPUTime
}

// Open begins a window.
func Open() (Window, error) {
	cpu, err := ReadCPU()
	return Window{start: time.Now(), cpu: cpu}, err
}

// Close fills r's Elapsed, Busy, User, Own and Others.
func (w Window) Close(r *Run, own time.Duration) error {
	elapsed := time.Since(w.start)
	cpu, err := ReadCPU()
	if err != nil {
		return err
	}
	r.Elapsed, r.Own = elapsed.Seconds(), own.Seconds()
	r.Busy, r.User = (cpu.Busy - w.cpu.Busy).Seconds(), (cpu.User - w.cpu.User).Seconds()
	r.Others = max(0, r.Busy-r.Own) / r.Elapsed
	return nil
}
