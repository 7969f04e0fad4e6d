// SPDX-License-Identifier: Apache-2.0

package cgroup

import "testing"

func TestParse(t *testing.T) {
	for line, want := range map[string]Hierarchy{
		"32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu":                                  {Mount: "/sys/fs/cgroup/cpu", Options: "cpu"},
		"33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct":                  {Mount: "/sys/fs/cgroup/cpu,cpuacct", Options: "cpu,cpuacct"},
		"40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/x/agent,name=systemd": {Mount: "/sys/fs/cgroup/systemd", Options: "none,name=systemd"},
		"41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw":                                {Mount: "/sys/fs/cgroup/unified", V2: true},
		"30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot": {Mount: "/sys/fs/cgroup", V2: true},
		"41 31 0:38 /.. /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw":                              {Mount: "/sys/fs/cgroup/unified", V2: true},
	} {
		got, ok := parse(line)
		if !ok || got != want {
			t.Errorf("%s:\ngot  %+v, %v\nwant %+v", line, got, ok, want)
		}
	}
	for _, line := range []string{
		"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755",
		"90 31 0:38 /x /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
		"91 31 0:38 / /tmp/test-cgroup rw - cgroup2 cgroup2 rw",
		"", "garbage", "1 2 3 - ",
	} {
		if h, ok := parse(line); ok {
			t.Errorf("%q was taken for %+v", line, h)
		}
	}
}
