// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Machine says where and when something was measured.
type Machine struct {
	Date   time.Time `json:"date"`
	Kernel string    `json:"kernel"`
	CPUs   int       `json:"cpus"`
	Model  string    `json:"model"`
	Memory string    `json:"memory"`
}

// ThisMachine reads /proc; what cannot be read stays empty.
func ThisMachine() Machine {
	m := Machine{Date: time.Now().UTC().Truncate(time.Second), CPUs: runtime.NumCPU()}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	m.Model = procField("/proc/cpuinfo", "model name")
	m.Memory = procField("/proc/meminfo", "MemTotal")
	return m
}

func procField(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if key, value, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// AvailableMemory is what programs may still take without swapping, in KiB.
func AvailableMemory() (int64, error) {
	var kib int64
	if _, err := fmt.Sscan(procField("/proc/meminfo", "MemAvailable"), &kib); err != nil {
		return 0, fmt.Errorf("reading how much memory is free: %w", err)
	}
	return kib, nil
}

func (m Machine) String() string {
	return fmt.Sprintf("%s, %d CPUs (%s), Linux %s", m.Date.Format(time.DateOnly), m.CPUs, m.Model, m.Kernel)
}

// WriteJSON writes a result file as a whole, with the folders above it.
func WriteJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the folder of %s: %w", path, err)
	}
	part := path + ".part"
	if err := os.WriteFile(part, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing a result: %w", err)
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("writing a result: %w", err)
	}
	return nil
}
