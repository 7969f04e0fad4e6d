// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var (
	// tools are programs of this machine that the emulated ones get, with their libraries.
	tools = []string{"ip", "tc", "nft", "conntrack", "ethtool", "nsenter", "unshare", "sysctl"}
	// modules are folders and files of modules, without what nothing of Weir's touches.
	modules = []string{"net/core", "net/ipv4", "net/ipv6", "net/netfilter", "net/sched", "net/802", "net/8021q", "net/llc", "net/bridge", "lib", "crypto", "arch/x86/crypto",
		"drivers/net/veth.ko*", "drivers/net/vxlan*", "drivers/net/dummy.ko*", "drivers/net/wireguard"}
	loaded = []string{"veth", "vxlan", "nf_tables", "nf_conntrack", "nf_conntrack_netlink", "nfnetlink_log", "nfnetlink_queue", "nft_queue", "nft_chain_nat", "nft_connlimit", "cls_bpf", "sch_ingress", "8021q", "ipip", "bridge", "wireguard"}
)

const (
	beginMark = "=== begin"
	endMark   = "=== end"
)

// play boots a machine with the kernel, has it do the checks, and reports what comes of each.
func (k *kernel) play(ctx context.Context, work, files string, checks []check, limit time.Duration, report func(outcome)) ([]outcome, error) {
	old := older(k.release, firstWithEBPF)
	var mine []check
	for _, c := range checks {
		if c.old || !old {
			mine = append(mine, c)
		}
	}
	image, err := k.initramfs(ctx, work, files, mine)
	if err != nil {
		return nil, err
	}
	defer os.Remove(image)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// Without cmpxchg16b, of which QEMU 7.2 gets the flags wrong now and then: 6.12 allocates
	// memory by it, and ends in an exception.
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "Broadwell-noTSX,-cx16", "-smp", "2", "-m", "4G", "-nographic", "-no-reboot",
		"-net", "none", "-kernel", k.image, "-initrd", image, "-append", "console=ttyS0 quiet panic=-1 mitigations=off lockdown=integrity")
	console, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	var all strings.Builder
	reported := 0
	for lines := bufio.NewScanner(console); lines.Scan(); {
		line := strings.TrimSuffix(lines.Text(), "\r")
		all.WriteString(line + "\n")
		if strings.HasPrefix(line, endMark) { // checks end in their order
			report(k.read(all.String(), mine[:reported+1], old)[reported])
			reported++
		}
	}
	err = cmd.Wait()
	if reported == len(mine) {
		return k.read(all.String(), mine, old), nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("not done within %s", limit)
	}
	return nil, errors.Join(err, fmt.Errorf("it ended before its checks; the console's end:\n%s", lastLines(all.String(), 30)))
}

// read finds each check's output and code on the console.
func (k *kernel) read(console string, checks []check, old bool) []outcome {
	var out []outcome
	for i, c := range checks {
		o := outcome{Kernel: k.release, Check: c.name}
		_, text, _ := strings.Cut(console, fmt.Sprintf("%s %d\n", beginMark, i))
		end := regexp.MustCompile(fmt.Sprintf(`%s %d ([0-9]+) ([0-9]+)\n`, endMark, i)).FindStringSubmatchIndex(text)
		if end != nil {
			code := text[end[2]:end[3]]
			o.Seconds, _ = strconv.Atoi(text[end[4]:end[5]])
			text = text[:end[0]]
			o.Passed = code == "0"
			if old && c.refuses != "" {
				o.Passed = code != "0" && strings.Contains(text, c.refuses)
			}
		}
		if !o.Passed {
			o.Output = lastLines(text, 40)
		}
		out = append(out, o)
	}
	return out
}

// initramfs makes the machine's only file system.
func (k *kernel) initramfs(ctx context.Context, work, files string, checks []check) (string, error) {
	root := filepath.Join(work, "root-"+k.release)
	defer os.RemoveAll(root)
	var script strings.Builder
	script.WriteString(`#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp; mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup; mount -t bpf bpf /sys/fs/bpf; mount -t tracefs tracefs /sys/kernel/tracing; mount -t securityfs security /sys/kernel/security
ip link set lo up
for m in ` + strings.Join(loaded, " ") + `; do modprobe $m; done
`)
	for i, c := range checks {
		fmt.Fprintf(&script, "cd /t/%s; echo '%s %d'; begun=$(date +%%s); %s >/tmp/out 2>&1; code=$?; tail -c 6000 /tmp/out; echo; echo \"%s %d $code $(($(date +%%s)-begun))\"\n",
			c.dir, beginMark, i, c.command, endMark, i)
	}
	script.WriteString("poweroff -f\n")
	var errs []error
	for _, d := range []string{"bin", "sbin", "proc", "sys", "dev", "tmp", "run", "etc", "var", "lib/modules/" + k.release + "/kernel"} {
		errs = append(errs, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	errs = append(errs, os.WriteFile(filepath.Join(root, "init"), []byte(script.String()), 0o755), os.Symlink("/run", filepath.Join(root, "var/run")),
		command(ctx, "", "cp", "-r", files, filepath.Join(root, "t")), command(ctx, "", "cp", "/bin/busybox", filepath.Join(root, "bin")))
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	if err := errors.Join(command(ctx, root, "chroot", ".", "/bin/busybox", "--install", "-s", "/bin"), os.Symlink("../bin/busybox", filepath.Join(root, "sbin/modprobe"))); err != nil {
		return "", err
	}
	for _, t := range tools {
		if err := withLibraries(ctx, root, t); err != nil {
			return "", err
		}
	}
	// Busybox's shell prefers its own ip to that of the path.
	sh := filepath.Join(root, "bin/sh")
	if err := errors.Join(withLibraries(ctx, root, "dash"), os.Remove(sh), os.Symlink("/usr/sbin/dash", sh)); err != nil {
		return "", err
	}
	to := filepath.Join(root, "lib/modules", k.release)
	for _, pattern := range modules {
		found, err := filepath.Glob(filepath.Join(k.modules, "kernel", pattern))
		if err != nil {
			return "", err
		}
		for _, f := range found {
			dir := filepath.Join(to, strings.TrimPrefix(filepath.Dir(f), k.modules))
			if err := errors.Join(os.MkdirAll(dir, 0o755), command(ctx, "", "cp", "-r", f, dir)); err != nil {
				return "", err
			}
		}
	}
	image := filepath.Join(work, k.release+".cpio")
	return image, errors.Join(command(ctx, to, "sh", "-c", "find . -name '*.xz' -exec xz -d {} +; for f in "+k.modules+"/modules.[bo]*; do [ ! -e $f ] || cp $f .; done"),
		command(ctx, "", "depmod", "-b", root, k.release),
		command(ctx, root, "sh", "-c", "find . | cpio -o -H newc --quiet >"+image))
}

// withLibraries copies a program of this machine to /usr/sbin under root, with what it is linked
// to.
func withLibraries(ctx context.Context, root, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	linked, err := output(ctx, "", "ldd", path)
	if err != nil {
		return err
	}
	files := map[string]string{path: "/usr/sbin/" + name}
	for _, f := range regexp.MustCompile(`/[^ )]+`).FindAllString(linked, -1) {
		files[f] = f
	}
	for from, to := range files {
		to = filepath.Join(root, to)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), command(ctx, "", "cp", "-L", from, to)); err != nil {
			return err
		}
	}
	return nil
}
