// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// ticks is the unit of /proc/stat: clock ticks a second (USER_HZ).
const ticks = 100

// Reading is what a node's CPUs have done since it started, in seconds, and what memory is in use.
// A pod reads the whole node's, because /proc/stat and /proc/meminfo are not namespaced.
type Reading struct {
	At      float64 `json:"at"`   // seconds of the reader's monotonic clock
	Boot    string  `json:"boot"` // the kernel's random name for its start: the same on nodes that share a kernel
	CPUs    int     `json:"cpus"`
	User    float64 `json:"user"`
	Nice    float64 `json:"nice"`
	System  float64 `json:"system"` // interrupts included
	Idle    float64 `json:"idle"`
	IOWait  float64 `json:"iowait"`
	Steal   float64 `json:"steal"`
	MemUsed float64 `json:"mem_used_mib"` // total less available
}

// Use is what a node did between two readings: CPU seconds, and the larger of the memory figures.
type Use struct {
	Elapsed float64 `json:"elapsed_s"`
	CPUs    int     `json:"cpus"`
	User    float64 `json:"user_s"`
	Nice    float64 `json:"nice_s"`
	System  float64 `json:"system_s"`
	IOWait  float64 `json:"iowait_s"`
	Steal   float64 `json:"steal_s"`
	MemUsed float64 `json:"mem_used_mib"`
}

// Busy are the CPU seconds that were worked; waiting for disks and what a hypervisor took away are
// not work.
func (u Use) Busy() float64 { return u.User + u.Nice + u.System }

// VCPUs is how many CPUs were busy on average.
func (u Use) VCPUs() float64 {
	if u.Elapsed == 0 {
		return 0
	}
	return u.Busy() / u.Elapsed
}

var started = time.Now()

// ReadNode reads this machine.
func ReadNode() (Reading, error) {
	r := Reading{At: time.Since(started).Seconds(), CPUs: runtime.NumCPU()}
	stat, err := os.Open("/proc/stat")
	if err != nil {
		return r, fmt.Errorf("reading the node's CPU time: %w", err)
	}
	defer stat.Close()
	if err := r.cpu(stat); err != nil {
		return r, err
	}
	memory, err := os.Open("/proc/meminfo")
	if err != nil {
		return r, fmt.Errorf("reading the node's memory: %w", err)
	}
	defer memory.Close()
	if err := r.memory(memory); err != nil {
		return r, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return r, fmt.Errorf("reading the node's boot ID: %w", err)
	}
	r.Boot = strings.TrimSpace(string(boot))
	return r, nil
}

// cpu reads the first line of /proc/stat (proc_stat(5)): user nice system idle iowait irq softirq
// steal.
func (r *Reading) cpu(from io.Reader) error {
	cpus := 0
	found := false
	for sc := bufio.NewScanner(from); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) == 0 || !strings.HasPrefix(f[0], "cpu") {
			continue
		}
		if f[0] != "cpu" {
			cpus++
			continue
		}
		if len(f) < 9 {
			return fmt.Errorf("reading the node's CPU time: the line %q is too short", sc.Text())
		}
		var v [8]float64
		for i := range v {
			n, err := strconv.ParseUint(f[i+1], 10, 64)
			if err != nil {
				return fmt.Errorf("reading the node's CPU time: %w", err)
			}
			v[i] = float64(n) / ticks
		}
		r.User, r.Nice, r.System, r.Idle, r.IOWait, r.Steal = v[0], v[1], v[2]+v[5]+v[6], v[3], v[4], v[7]
		found = true
	}
	if !found {
		return fmt.Errorf("reading the node's CPU time: no line \"cpu\"")
	}
	if cpus > 0 {
		r.CPUs = cpus // of the node; the process may be bound to fewer
	}
	return nil
}

func (r *Reading) memory(from io.Reader) error {
	var total, available float64
	for sc := bufio.NewScanner(from); sc.Scan(); {
		name, value, _ := strings.Cut(sc.Text(), ":")
		var kib float64
		if _, err := fmt.Sscan(value, &kib); err != nil {
			continue
		}
		switch name {
		case "MemTotal":
			total = kib
		case "MemAvailable":
			available = kib
		}
	}
	if total == 0 {
		return fmt.Errorf("reading the node's memory: no MemTotal")
	}
	r.MemUsed = (total - available) / 1024
	return nil
}

// Since is what was used from an earlier reading of the same node to this one.
func (r Reading) Since(before Reading) Use {
	return Use{Elapsed: r.At - before.At, CPUs: r.CPUs, User: r.User - before.User, Nice: r.Nice - before.Nice, System: r.System - before.System,
		IOWait: max(0, r.IOWait-before.IOWait), Steal: r.Steal - before.Steal, MemUsed: max(r.MemUsed, before.MemUsed)}
}
