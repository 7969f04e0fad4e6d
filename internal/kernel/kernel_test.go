// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/nettest"
)

func TestMeasuredHZAgreesWithConfiguration(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	want, err := configuredHZ("/proc/config.gz")
	if err != nil {
		t.Skipf("this kernel does not show its configuration: %v", err)
	}
	got, err := measuredHZ(200 * time.Millisecond)
	if err != nil || got != want {
		t.Errorf("measured %d, %v; configured %d", got, err, want)
	}
}

func TestNearestRate(t *testing.T) {
	for measured, want := range map[float64]int{95: 100, 245.1: 250, 260: 250, 290: 300, 1010: 1000} {
		got, err := nearestRate(measured)
		if err != nil || got != want {
			t.Errorf("nearestRate(%v) = %d, %v; want %d", measured, got, err, want)
		}
	}
	if _, err := nearestRate(5); err == nil {
		t.Error("5 jiffies a second are believed")
	}
}

func TestFindCgroupV2(t *testing.T) {
	for _, tt := range []struct{ mounts, want string }{
		{"tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n", "/sys/fs/cgroup/unified"},
		{"cgroup2 /mnt/a\\040b cgroup2 rw 0 0\n", "/mnt/a b"},
		{"cgroup2 /mnt/x cgroup2 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "/sys/fs/cgroup"},
	} {
		got, err := findCgroupV2(strings.NewReader(tt.mounts))
		if err != nil || got != tt.want {
			t.Errorf("%q: %q, %v; want %q", tt.mounts, got, err, tt.want)
		}
	}
	if _, err := findCgroupV2(strings.NewReader("proc /proc proc rw 0 0\n")); err == nil || !strings.Contains(err.Error(), "cgroupV2Path") {
		t.Errorf("no mount: error %v does not say what to set", err)
	}
}

func TestMissingFeatureIsNamedWithItsKernel(t *testing.T) {
	f := Finding{Feature: Feature{Name: "tcx links", Since: "6.6", Needed: true, Purpose: "attaching to interfaces", Hint: "CONFIG_NET_XGRESS=y"},
		Err: ebpf.ErrNotSupported}
	got := f.problem()
	for _, want := range []string{"tcx links", "6.6", "attaching to interfaces", "CONFIG_NET_XGRESS=y"} {
		if got == nil || !strings.Contains(got.Error(), want) {
			t.Errorf("message %v does not contain %q", got, want)
		}
	}
	f.Needed = false
	if f.problem() != nil {
		t.Error("a feature that is not needed is a problem")
	}
}

func TestProbeOnThisKernel(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	findings, err := Probe()
	if err != nil {
		t.Fatal(err)
	}
	if len(findings) != len(Features()) {
		t.Errorf("%d findings for %d features", len(findings), len(Features()))
	}
}

func TestNetnsCookie(t *testing.T) {
	a, err := NetnsCookie()
	if err != nil {
		t.Fatal(err)
	}
	b, _ := NetnsCookie()
	if a == 0 || a != b {
		t.Errorf("cookies %d and %d", a, b)
	}
}
