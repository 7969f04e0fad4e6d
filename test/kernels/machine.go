// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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

// boot is what a machine starts from.
type boot struct {
	initrd string
	disk   string   // with its root file system; empty where that is the initrd
	append []string // to the kernel's command line
}

// mine are the checks that are for this kernel.
func (k *kernel) mine(checks []check) (out []check) {
	for _, c := range checks {
		if c.old || !k.old() {
			out = append(out, c)
		}
	}
	return out
}

func (k *kernel) old() bool { return older(k.release, firstWithEBPF) }

// play boots a machine with the kernel, has it do the checks, and reports what comes of each. All
// that is on its console is written to the log as well.
func (k *kernel) play(ctx context.Context, b boot, checks []check, limit time.Duration, log io.Writer, report func(outcome)) ([]outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// Without cmpxchg16b, of which QEMU 7.2 gets the flags wrong now and then: 6.12 allocates
	// memory by it, and ends in an exception.
	args := []string{"-cpu", "Broadwell-noTSX,-cx16", "-m", "4G", "-nographic", "-no-reboot",
		"-net", "none", "-kernel", k.image, "-initrd", b.initrd,
		"-append", strings.Join(append([]string{"console=ttyS0 quiet panic=-1 mitigations=off lockdown=integrity"}, b.append...), " ")}
	if b.disk == "" {
		args = append(args, "-accel", "tcg,thread=multi", "-smp", "2")
	} else {
		// While the machine runs, its time is that of its instructions, a nanosecond each: a
		// cluster's many timeouts are those of a slow processor, however much slower than that the
		// emulated one is, and whatever else this machine does. What is written is forgotten.
		args = append(args, "-accel", "tcg,thread=single", "-smp", "1", "-icount", "shift=0", "-rtc", "clock=vm",
			"-drive", "if=virtio,format=raw,snapshot=on,cache=unsafe,file="+b.disk)
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	console, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	var all strings.Builder
	reported := 0
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20) // what a cluster's daemons log is long
	for lines.Scan() {
		line := strings.TrimSuffix(lines.Text(), "\r")
		all.WriteString(line + "\n")
		_, _ = io.WriteString(log, line+"\n")                           // to look at, and no more
		if strings.HasPrefix(line, endMark) && reported < len(checks) { // checks end in their order
			report(k.read(all.String(), checks[:reported+1])[reported])
			reported++
		}
	}
	err = cmd.Wait()
	if reported == len(checks) {
		return k.read(all.String(), checks), nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("not done within %s", limit)
	}
	return nil, errors.Join(err, fmt.Errorf("it ended before its checks; the console's end:\n%s", lastLines(all.String(), 30)))
}

// read finds each check's output and code on the console.
func (k *kernel) read(console string, checks []check) []outcome {
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
			if k.old() && c.refuses != "" {
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

// initramfs makes a machine whose only file system is in memory.
func (k *kernel) initramfs(ctx context.Context, work, files string, checks []check) (boot, error) {
	root := filepath.Join(work, "root-"+k.release)
	defer os.RemoveAll(root)
	init := `#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
off() { poweroff -f; }
` + mounts + script(loaded, kept, checks)
	if err := k.busybox(ctx, root, init, modules); err != nil {
		return boot{}, err
	}
	errs := []error{os.Mkdir(filepath.Join(root, "var"), 0o755), os.Symlink("/run", filepath.Join(root, "var/run")),
		command(ctx, "", "cp", "-r", files, filepath.Join(root, "t"))}
	for _, t := range tools {
		errs = append(errs, withLibraries(ctx, root, t))
	}
	// Busybox's shell prefers its own ip to that of the path.
	sh := filepath.Join(root, "bin/sh")
	errs = append(errs, withLibraries(ctx, root, "dash"), os.Remove(sh), os.Symlink("/usr/sbin/dash", sh))
	if err := errors.Join(errs...); err != nil {
		return boot{}, err
	}
	image, err := k.cpio(ctx, work, root)
	return boot{initrd: image}, err
}

// mounts are those of every machine; the control groups are one hierarchy of version 2.
const mounts = `mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup; mount -t bpf bpf /sys/fs/bpf; mount -t tracefs tracefs /sys/kernel/tracing; mount -t securityfs security /sys/kernel/security
ip link set lo up
`

// What becomes of a command's output: its end is printed, or all of it, as it comes.
const (
	kept  = ">/tmp/out 2>&1; code=$?; tail -c 6000 /tmp/out"
	shown = "2>&1; code=$?"
)

// script is the part of a machine's first process that loads modules, runs the checks, and then
// calls off, which ends the machine.
func script(modules []string, output string, checks []check) string {
	var b strings.Builder
	fmt.Fprintf(&b, "for m in %s; do modprobe $m; done\n", strings.Join(modules, " "))
	for i, c := range checks {
		fmt.Fprintf(&b, "cd /t/%s; echo '%s %d'; begun=$(date +%%s); %s %s; echo; echo \"%s %d $code $(($(date +%%s)-begun))\"\n",
			c.dir, beginMark, i, c.command, output, endMark, i)
		if c.vital {
			b.WriteString("[ $code = 0 ] || off\n")
		}
	}
	return b.String() + "off\n"
}

// busybox makes a root file system of busybox, the first process and modules.
func (k *kernel) busybox(ctx context.Context, root, init string, patterns []string) error {
	to := filepath.Join(root, "lib/modules", k.release)
	var errs []error
	for _, d := range []string{"bin", "sbin", "proc", "sys", "dev", "tmp", "run", "etc", "root", "lib/modules/" + k.release + "/kernel"} {
		errs = append(errs, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	errs = append(errs, os.WriteFile(filepath.Join(root, "init"), []byte(init), 0o755), command(ctx, "", "cp", "/bin/busybox", filepath.Join(root, "bin")))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := errors.Join(command(ctx, root, "chroot", ".", "/bin/busybox", "--install", "-s", "/bin"), os.Symlink("../bin/busybox", filepath.Join(root, "sbin/modprobe"))); err != nil {
		return err
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(k.modules, "kernel", pattern))
		if err != nil {
			return err
		}
		for _, f := range found {
			dir := filepath.Join(to, strings.TrimPrefix(filepath.Dir(f), k.modules))
			if err := errors.Join(os.MkdirAll(dir, 0o755), command(ctx, "", "cp", "-r", f, dir)); err != nil {
				return err
			}
		}
	}
	return errors.Join(command(ctx, to, "sh", "-c", "find . -name '*.xz' -exec xz -d {} +; for f in "+k.modules+"/modules.[bo]*; do [ ! -e $f ] || cp $f .; done"),
		command(ctx, "", "depmod", "-b", root, k.release))
}

// cpio makes an initrd of a root file system.
func (k *kernel) cpio(ctx context.Context, work, root string) (string, error) {
	image := filepath.Join(work, k.release+".cpio")
	return image, command(ctx, root, "sh", "-c", "find . | cpio -o -H newc --quiet >"+image)
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
