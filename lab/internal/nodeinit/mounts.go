// SPDX-License-Identifier: Apache-2.0

package nodeinit

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/weir-net/weir/lab/internal/cgroup"
	"github.com/weir-net/weir/lab/internal/nodespec"
	"golang.org/x/sys/unix"
)

// overlaid folders show the machine's files; what the node changes is its own and
// is gone with it.
var overlaid = []string{"/etc", "/opt"}

// mountAll turns the copy of the machine's mounts that this process began with
// into the node's. Folders of the machine are taken first, because the mounts
// hide them.
func mountAll(log *slog.Logger, spec *nodespec.Spec, hs []cgroup.Hierarchy) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("part the node's mounts from the machine's: %w", err)
	}
	varDir, err := detachedMount(spec.Var)
	if err != nil {
		return err
	}
	defer unix.Close(varDir)
	var binds []int
	for _, b := range spec.Binds {
		fd, err := detachedMount(b.From)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		binds = append(binds, fd)
	}
	if err := detachForeign(log); err != nil {
		return err
	}
	if err := overlay(); err != nil {
		return err
	}
	if err := mountKernel(hs); err != nil {
		return err
	}
	if err := put(varDir, "/var"); err != nil {
		return err
	}
	if err := makeVar(); err != nil {
		return err
	}
	for i, b := range spec.Binds {
		if err := os.MkdirAll(b.To, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", b.To, err)
		}
		if err := put(binds[i], b.To); err != nil {
			return err
		}
		if err := unix.Mount("", b.To, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make %s read-only: %w", b.To, err)
		}
	}
	return nil
}

// detachedMount makes a mount of a folder of the machine that is not attached anywhere yet.
func detachedMount(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open folder %s of the machine: %w", path, err)
	}
	return fd, nil
}

// put attaches what take made.
func put(fd int, at string) error {
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount a folder of the machine at %s: %w", at, err)
	}
	return nil
}

// detachForeign drops the copies of mounts that belong to others on this machine:
// named network namespaces, file systems of BPF, other labs and tests. Kept, they
// would live as long as the node.
func detachForeign(log *slog.Logger) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the node's mounts: %w", err)
	}
	defer f.Close()
	var drop []string
	s := bufio.NewScanner(f)
	for s.Scan() {
		left, right, ok := strings.Cut(s.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if ok && len(l) >= 5 && len(r) >= 1 && foreign(unescape(l[4]), r[0]) {
			drop = append(drop, unescape(l[4]))
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read the node's mounts: %w", err)
	}
	// Innermost first; what goes away together with another is no error.
	sort.Sort(sort.Reverse(sort.StringSlice(drop)))
	for _, path := range drop {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			log.Debug("mount is gone already", "path", path, "error", err)
		}
	}
	return nil
}

func foreign(path, fstype string) bool {
	for _, own := range []string{"/", "/dev", "/proc", "/sys", "/tmp"} {
		if path == own {
			return false
		}
	}
	if strings.HasPrefix(path, "/dev/") {
		return false
	}
	if strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/") || strings.HasPrefix(path, "/run/") || path == "/run" {
		return true
	}
	switch fstype {
	case "nsfs", "bpf", "tmpfs", "overlay", "proc", "sysfs", "cgroup", "cgroup2":
		return true
	}
	return false
}

// unescape decodes the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// overlay gives the node folders that it may change. Their upper halves are on a
// tmpfs that nothing but the overlays can reach.
func overlay() error {
	const staging = "/run"
	if err := unix.Mount("weir-lab", staging, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		return fmt.Errorf("mount a tmpfs for the node's changes: %w", err)
	}
	for _, dir := range overlaid {
		upper, work := filepath.Join(staging, dir, "upper"), filepath.Join(staging, dir, "work")
		for _, d := range []string{upper, work} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return fmt.Errorf("make %s: %w", d, err)
			}
		}
		opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
		if err := unix.Mount("overlay", dir, "overlay", 0, opts); err != nil {
			return fmt.Errorf("overlay %s: %w", dir, err)
		}
	}
	if err := unix.Unmount(staging, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("hide the node's changes: %w", err)
	}
	return nil
}

const selinux = "/sys/fs/selinux"

// SELinux says whether the machine has a policy of SELinux loaded: its file system is mounted then.
func SELinux() bool {
	_, err := os.Stat(selinux + "/enforce")
	return err == nil
}

func mountKernel(hs []cgroup.Hierarchy) error {
	const common = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	labels := SELinux() // the mounts hide the machine's
	for _, m := range []struct {
		fstype, at, opts string
		flags            uintptr
	}{
		{"proc", "/proc", "", common},
		{"sysfs", "/sys", "", common},
		{"tmpfs", "/run", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		if err := unix.Mount(m.fstype, m.at, m.fstype, m.flags, m.opts); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.fstype, m.at, err)
		}
	}
	if err := cgroup.Mount(hs); err != nil {
		return err
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", common, "mode=700"); err != nil {
		return fmt.Errorf("mount the node's BPF file system: %w", err)
	}
	if labels {
		if err := unix.Mount("selinuxfs", selinux, "selinuxfs", unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount SELinux' file system: %w", err)
		}
	}
	for _, d := range []string{"/run/lock", "/run/netns"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", d, err)
		}
	}
	return nil
}

// makeVar fills the node's /var, which begins with little more than images.
func makeVar() error {
	for _, d := range []string{"cache", "spool", "tmp", "lib/kubelet", "lib/containerd", "lib/cni", "lib/weir-lab", "log/pods", "log/containers"} {
		if err := os.MkdirAll(filepath.Join("/var", d), 0o755); err != nil {
			return fmt.Errorf("make /var/%s: %w", d, err)
		}
	}
	if err := os.Chmod("/var/tmp", 0o777|os.ModeSticky); err != nil {
		return fmt.Errorf("open /var/tmp to all: %w", err)
	}
	for link, target := range map[string]string{"/var/run": "/run", "/var/lock": "/run/lock"} {
		if err := os.Symlink(target, link); err != nil && !os.IsExist(err) {
			return fmt.Errorf("link %s: %w", link, err)
		}
	}
	return nil
}

// maskSysctls shows the node settings of the whole machine as it wants them.
func maskSysctls(sysctls map[string]string) error {
	const dir = nodespec.Base + "/sysctl"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	for key, value := range sysctls {
		path := filepath.Join("/proc/sys", key)
		now, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(now)) == value {
			continue // the kernel does not have it, or has it right
		}
		file := filepath.Join(dir, strings.ReplaceAll(key, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("write the node's %s: %w", key, err)
		}
		if err := unix.Mount(file, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mask %s: %w", key, err)
		}
	}
	return nil
}

// readOnlyRoot takes away writing to everything but the writable paths, which are
// made mounts of their own first.
func readOnlyRoot() error {
	for _, path := range nodespec.WritablePaths {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		if path == "/var" {
			continue // is one already
		}
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keep %s writable: %w", path, err)
		}
	}
	if err := unix.Mount("/tmp", "/tmp", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep /tmp writable: %w", err)
	}
	for _, path := range append([]string{"/"}, overlaid...) {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, path, 0, &attr); err != nil {
			return fmt.Errorf("make %s read-only: %w", path, err)
		}
	}
	return nil
}

// shareMounts lets containers mount on the node and see what the node mounts.
func shareMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the node's mounts with its containers: %w", err)
	}
	return nil
}
