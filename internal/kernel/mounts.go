// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// CgroupV2 returns the mount point of the unified control group hierarchy (cgroups(7)) of this
// mount namespace. A plain /sys/fs/cgroup is preferred to other mounts of it.
func CgroupV2() (string, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("looking for the cgroup2 mount: %w", err)
	}
	defer f.Close()
	return findCgroupV2(f)
}

func findCgroupV2(mounts io.Reader) (string, error) {
	found := ""
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[2] != "cgroup2" {
			continue
		}
		dir := unescapeMount(fields[1])
		if found == "" || dir == "/sys/fs/cgroup" {
			found = dir
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("reading the mount table: %w", err)
	}
	if found == "" {
		return "", errors.New("no cgroup2 file system is mounted; mount one (mount -t cgroup2 none /run/weir/cgroup) or set cgroupV2Path")
	}
	return found, nil
}

// unescapeMount undoes the octal escapes of proc(5) mount tables.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// CheckCgroupV2 says what is wrong with a path that should be a folder of the unified hierarchy.
func CheckCgroupV2(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("control group %s: %w", dir, err)
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("control group %s: not on a cgroup2 file system", dir)
	}
	return nil
}

// EnsureBPFFS makes dir, whose nearest existing parent must be on a BPF file system. Where it is
// not, one is mounted at root, when root is not empty.
func EnsureBPFFS(root, dir string) error {
	on, err := onBPFFS(dir)
	if err != nil {
		return err
	}
	if !on {
		if root == "" {
			return fmt.Errorf("%s is not on a BPF file system: mount one (mount -t bpf bpf /sys/fs/bpf)", dir)
		}
		if err := unix.Mount("bpf", root, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
			return fmt.Errorf("mounting a BPF file system at %s: %w", root, err)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the folder for pinned objects: %w", err)
	}
	return nil
}

func onBPFFS(dir string) (bool, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return st.Type == unix.BPF_FS_MAGIC, nil
		}
		if !errors.Is(err, unix.ENOENT) || dir == "/" {
			return false, fmt.Errorf("file system of %s: %w", dir, err)
		}
		dir = filepath.Dir(dir)
	}
}
