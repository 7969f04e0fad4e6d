// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// HZ returns the kernel's jiffies per second (CONFIG_HZ). It reads the kernel's own configuration
// where that is shown, and measures for about 200 ms otherwise, or for longer where that is too
// short: a virtual machine that waits for a CPU gets its ticks late. Needs the right to load
// programs for the latter.
func HZ() (int, error) {
	if hz, err := configuredHZ("/proc/config.gz"); err == nil {
		return hz, nil
	}
	var hz int
	var err error
	for _, span := range []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second} {
		if hz, err = measuredHZ(span); !errors.Is(err, errNoRate) {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("finding the kernel's jiffies per second: %w", err)
	}
	return hz, nil
}

var errNoRate = errors.New("which no kernel is built with")

// configuredHZ finds CONFIG_HZ in a compressed kernel configuration.
func configuredHZ(path string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	return parseHZ(z)
}

func parseHZ(r io.Reader) (int, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "CONFIG_HZ="); ok {
			hz, err := strconv.Atoi(v)
			if err != nil || hz <= 0 {
				return 0, fmt.Errorf("CONFIG_HZ is %q", v)
			}
			return hz, nil
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, errors.New("no CONFIG_HZ")
}

// rates are the values that kernels are built with (kernel/Kconfig.hz), on the architectures that
// have a BPF compiler.
var rates = []int{100, 250, 300, 1000}

// measuredHZ lets a program read jiffies twice, and compares with the time that passed.
func measuredHZ(span time.Duration) (int, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "weir_jiffies", Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{
			asm.FnJiffies64.Call(),
			asm.Return(),
		},
	})
	if err != nil {
		return 0, fmt.Errorf("loading a program that reads jiffies: %w", err)
	}
	defer prog.Close()
	// A reading during which this process had to wait for a CPU says little of when it was made: it
	// is done again.
	read := func() (ret uint32, at time.Time, err error) {
		for took, tries := span, 0; took > span/40 && tries < 100; tries++ {
			begin := time.Now()
			if ret, err = prog.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil {
				return 0, at, err
			}
			at = time.Now()
			took = at.Sub(begin)
		}
		return ret, at, nil
	}
	first, begin, err := read()
	if err != nil {
		return 0, fmt.Errorf("reading jiffies: %w", err)
	}
	time.Sleep(span)
	last, end, err := read()
	if err != nil {
		return 0, fmt.Errorf("reading jiffies: %w", err)
	}
	return nearestRate(float64(last-first) / end.Sub(begin).Seconds())
}

func nearestRate(measured float64) (int, error) {
	best, distance := 0, 0.0
	for _, r := range rates {
		d := measured/float64(r) - 1
		if d < 0 {
			d = -d
		}
		if best == 0 || d < distance {
			best, distance = r, d
		}
	}
	if distance > 0.15 {
		return 0, fmt.Errorf("measured %.0f jiffies a second, %w", measured, errNoRate)
	}
	return best, nil
}
