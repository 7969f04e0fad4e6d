// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
)

// cluster is what runs in a machine with a disk. weir-lab and Weir's programs are in /opt/weir and
// on PATH there, and WEIR_CACHE holds what labs of one proxy need. A check runs a test, as those of
// make kernels do, or any other command.
type cluster struct {
	proxy    string            // of the labs, as weir-lab up has it
	packages map[string]string // whose tests run, by the folder that they get
	selinux  bool              // in force, with Debian's policy
	checks   []check
}

// clusters are those that -cluster names.
var clusters = map[string]cluster{
	"weir": {proxy: "weir", packages: map[string]string{"cluster": "./test/kernels/cluster"}, checks: slices.Concat(oneNode, []check{
		{name: "removed", command: `{ weir-lab down && test -z "$(ls -A /run/netns)" && test ! -e /sys/fs/cgroup/weir-cp; }`},
	})},
	"selinux": {proxy: "weir", packages: map[string]string{"cluster": "./test/kernels/cluster"}, selinux: true, checks: slices.Concat([]check{
		{name: "SELinux", command: `test "$(getenforce)" = Enforcing`},
	}, oneNode, []check{
		{name: "label of agents", command: `{ for p in $(pgrep -x weir-agent); do tr '\0' '\n' </proc/$p/attr/current; done | tee /tmp/labels && test -s /tmp/labels && ! grep -v '^system_u:system_r:spc_t:' /tmp/labels; }`},
		{name: "denials", command: `{ dmesg | grep 'avc: *denied.* scontext=[^ ]*:\(spc_t\|container_t\):' >/tmp/denials; cat /tmp/denials; test ! -s /tmp/denials; }`},
	})},
}

// oneNode are the checks of a cluster that is brought up in a lab without workers.
var oneNode = []check{
	{name: "cgroup v2 alone", command: `{ test "$(awk '$3 ~ /^cgroup/ { print $2, $3 }' /proc/mounts)" = "/sys/fs/cgroup cgroup2"; }`},
	{name: "lockdown", command: "grep -F '[integrity]' /sys/kernel/security/lockdown"},
	{name: "cluster", vital: true, command: "{ weir-lab up --workers 0 --timeout 20m --install-arg=--timeout=20m --keep-failed || { logs; false; }; }"},
	{name: "status", command: "{ weir-lab status && weir-lab exec cp -- weir status; }"},
	{name: "on eBPF", dir: "cluster", command: passes("TestEBPF$", "", 1)},
	{name: "on nftables", dir: "cluster", command: passes("TestNFT$", "", 1)},
}

// onDisk are machines with Debian on a disk.
type onDisk struct {
	cluster
	bin, cache, tests, packed string
}

func (m *onDisk) kernels() string {
	if m.selinux {
		return "6.12" // the policy of Debian 12 is older
	}
	return "6.12,6.1"
}

func (m *onDisk) checks() []check { return m.cluster.checks }

func (m *onDisk) prepare(ctx context.Context, work string, checks []check) error {
	m.tests, m.packed = filepath.Join(work, "t"), filepath.Join(work, "packed")
	if err := build(ctx, m.tests, m.packages, checks); err != nil {
		return err
	}
	// What is packed is linked, so it is packed within the cache.
	part, err := os.MkdirTemp(m.cache, "packed-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	packed := filepath.Join(part, "lab")
	return errors.Join(command(ctx, "", filepath.Join(m.bin, "weir-lab"), "--cache", m.cache, "pack", "--proxy", m.proxy, packed),
		command(ctx, "", "mv", packed, m.packed))
}

// firstWithTrixie is the oldest kernel that gets Debian 13, which came with 6.12.
const firstWithTrixie = "6.12"

func (m *onDisk) make(ctx context.Context, repo *archive, k *kernel, work string, checks []check) (boot, error) {
	suite := "trixie"
	if older(k.release, firstWithTrixie) {
		suite = "bookworm"
	}
	base, err := repo.debian(ctx, suite, m.selinux)
	if err != nil {
		return boot{}, err
	}
	programs, err := filepath.Glob(filepath.Join(m.bin, "weir*"))
	if err != nil {
		return boot{}, err
	}
	bin := filepath.Join(work, "bin")
	defer os.RemoveAll(bin)
	if err := errors.Join(os.Mkdir(bin, 0o755), command(ctx, "", "cp", append(programs, bin)...)); err != nil {
		return boot{}, err
	}
	b, err := k.disk(ctx, work, map[string]string{"/": base, "/usr/lib/modules/" + k.release: k.modules, "/var/cache/weir": m.packed, "/opt/weir": bin, "/t": m.tests},
		m.init(checks), m.selinux)
	if m.selinux {
		b.append = []string{"security=selinux", "enforcing=1", "log_buf_len=16M"}
	}
	return b, err
}

// init is the machine's first process.
func (m *onDisk) init(checks []check) string {
	labels := ""
	if m.selinux {
		labels = `mount -t selinuxfs selinuxfs /sys/fs/selinux; sysctl -q kernel.printk_ratelimit=0
load_policy -i; restorecon -R /dev
exec runcon ` + engineContext + ` /bin/sh $0 labelled
`
	}
	return `#!/bin/sh
export PATH=/opt/weir:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root WEIR_CACHE=/var/cache/weir
if [ -z "$1" ]; then
` + mounts + `mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs shm /dev/shm
dmesg -n 1; hostname debian; blockdev --setra 16384 /dev/vda
` + labels + `fi
off() { busybox poweroff -f; }
logs() { tail -n 40 /var/cache/weir/labs/weir/cp/var/log/*.log; }
` + script(append([]string{"overlay"}, loaded...), shown, checks)
}
