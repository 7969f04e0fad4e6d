// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Sysctl reads a number below /proc/sys, for example "net", "ipv4", "ip_forward".
func Sysctl(path ...string) (int, error) {
	file := filepath.Join(append([]string{"/proc/sys"}, path...)...)
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("reading a kernel setting: %w", err)
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", file, err)
	}
	return v, nil
}

// SetSysctl makes a number below /proc/sys equal to v and reports whether it had to write.
func SetSysctl(v int, path ...string) (bool, error) {
	have, err := Sysctl(path...)
	if err != nil || have == v {
		return false, err
	}
	file := filepath.Join(append([]string{"/proc/sys"}, path...)...)
	if err := os.WriteFile(file, []byte(strconv.Itoa(v)), 0); err != nil {
		return false, fmt.Errorf("setting %s to %d: %w", file, v, err)
	}
	return true, nil
}

// LooseReversePath relaxes the reverse-path check (RFC 3704) of an interface from strict to loose,
// and leaves an interface that is loose or unchecked as it is. The kernel takes the greater of the
// interface's value and that of "all".
func LooseReversePath(ifname string) (bool, error) {
	all, err := Sysctl("net", "ipv4", "conf", "all", "rp_filter")
	if err != nil {
		return false, err
	}
	own, err := Sysctl("net", "ipv4", "conf", ifname, "rp_filter")
	if err != nil {
		return false, err
	}
	if max(all, own) != 1 {
		return false, nil
	}
	return SetSysctl(2, "net", "ipv4", "conf", ifname, "rp_filter")
}

// DisableIPv6 switches IPv6 off on an interface, so that it gets no link-local address and sends no
// router solicitations. A kernel without IPv6 is fine.
func DisableIPv6(ifname string) (bool, error) {
	wrote, err := SetSysctl(1, "net", "ipv6", "conf", ifname, "disable_ipv6")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return wrote, err
}
