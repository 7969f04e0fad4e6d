// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// installed are Debian's packages of a machine with a disk; labelled are those that it has besides
// where SELinux is to be in force.
var (
	installed = []string{"busybox-static", "ca-certificates", "conntrack", "containerd", "curl", "iproute2", "iptables", "kmod", "mount", "nftables", "procps", "runc"}
	labelled  = []string{"policycoreutils", "selinux-policy-default"}
)

// What a lab runs outside of containers is in the domain of a container runtime. Its files are not
// where Debian's policy has those of one, so that domain, and that of a machine's first process,
// may do what the policy does not allow; containers may not.
const (
	engineContext = "system_u:system_r:container_engine_t:s0-s0:c0.c1023"
	labPolicy     = "(typepermissive kernel_t)\n(typepermissive container_engine_t)\n"
)

// debian is a folder with Debian of a suite, made once.
func (a *archive) debian(ctx context.Context, suite string, selinux bool) (string, error) {
	list, key := strings.Join(installed, ","), suite
	if selinux {
		list += "," + strings.Join(labelled, ",")
		key += labPolicy
	}
	dir := filepath.Join(a.dir, fmt.Sprintf("debian-%s-%.4x", suite, sha256.Sum256([]byte(key+list))))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	fmt.Println("installing Debian", suite, "into a folder")
	part := dir + ".part"
	// In mounts of its own, so that none can stay behind.
	if err := errors.Join(os.RemoveAll(part), command(ctx, "", "unshare", "--mount", "debootstrap", "--variant=minbase", "--include="+list, suite, part, a.uri)); err != nil {
		return "", err
	}
	for _, d := range []string{"var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"} {
		if err := os.RemoveAll(filepath.Join(part, d)); err != nil {
			return "", err
		}
	}
	if selinux {
		err := errors.Join(os.WriteFile(filepath.Join(part, "root", "weir-lab.cil"), []byte(labPolicy), 0o644),
			command(ctx, "", "chroot", part, "semodule", "--noreload", "--install", "/root/weir-lab.cil"))
		if err != nil {
			return "", err
		}
	}
	return dir, os.Rename(part, dir)
}

// disk makes a machine whose root file system is on a disk: a folder of this machine for each of
// its own, and its first process.
func (k *kernel) disk(ctx context.Context, work string, folders map[string]string, init string, labels bool) (boot, error) {
	root := filepath.Join(work, "disk-"+k.release)
	defer os.RemoveAll(root)
	if err := command(ctx, "", "cp", "-a", folders["/"], root); err != nil {
		return boot{}, err
	}
	for at, from := range folders {
		if at == "/" {
			continue
		}
		to := filepath.Join(root, at)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), command(ctx, "", "cp", "-a", from, to)); err != nil {
			return boot{}, err
		}
	}
	err := errors.Join(os.WriteFile(filepath.Join(root, firstProcess), []byte(init), 0o755), command(ctx, "", "depmod", "-b", root, k.release))
	if err == nil && labels {
		// Debian's own program: this machine may have none. -m: its file system need not show
		// labels.
		err = command(ctx, "", "chroot", root, "setfiles", "-mF", "/etc/selinux/default/contexts/files/file_contexts", "/")
	}
	if err != nil {
		return boot{}, err
	}
	b := boot{disk: filepath.Join(work, k.release+".ext4")}
	if err := command(ctx, "", "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", root, b.disk, "8G"); err != nil {
		return boot{}, err
	}
	b.initrd, err = k.toDisk(ctx, work)
	return b, err
}

const firstProcess = "/usr/sbin/weir-kernels"

// toDisk makes the initrd that goes on to the disk.
func (k *kernel) toDisk(ctx context.Context, work string) (string, error) {
	root := filepath.Join(work, "initrd-"+k.release)
	defer os.RemoveAll(root)
	init := `#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc
for m in virtio_pci virtio_blk; do modprobe $m; done
for i in $(seq 100); do [ ! -b /dev/vda ] || break; sleep 0.1; done
mount -t ext4 /dev/vda /root && umount /proc && mount --move /dev /root/dev && exec switch_root /root ` + firstProcess + `
echo 'the disk is not mounted'; poweroff -f
`
	if err := k.busybox(ctx, root, init, []string{"drivers/virtio", "drivers/block/virtio_blk.ko*"}); err != nil {
		return "", err
	}
	return k.cpio(ctx, work, root)
}
