// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ports are where a kube-proxy listens unless it is configured otherwise: health and metrics.
var ports = []uint16{10256, 10249}

// running says by what a kube-proxy is seen on this node, "" when none is; known is false while
// that cannot be said.
func running(cfg Config) (who string, known bool) {
	pod, known := cfg.Pod()
	if pod != "" {
		return "pod " + pod, true
	}
	proc := cmp.Or(cfg.proc, "/proc")
	if who := listener(proc); who != "" {
		return who, true
	}
	return process(proc), known
}

// listener finds a socket that listens on one of kube-proxy's ports and is not this process's own.
func listener(proc string) string {
	port, found := foreign(func() map[string]uint16 { return listening(proc) }, func() map[string]bool { return ownSockets(proc) })
	if !found {
		return ""
	}
	return fmt.Sprintf("somebody listens on TCP port %d", port)
}

// foreign returns the port of a socket that is not this process's own. The process opens and closes
// sockets meanwhile, so its descriptors are read after the sockets were, and what is not among them
// has to be there still.
func foreign(sockets func() map[string]uint16, own func() map[string]bool) (port uint16, found bool) {
	first := sockets()
	if len(first) == 0 {
		return 0, false
	}
	ours := own()
	still := sockets()
	for inode, port := range first {
		if _, there := still[inode]; there && !ours[inode] {
			return port, true
		}
	}
	return 0, false
}

// ownSockets are the inodes of this process's sockets.
func ownSockets(proc string) map[string]bool {
	own := map[string]bool{}
	fds, _ := filepath.Glob(filepath.Join(proc, "self/fd/*"))
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		if inode, ok := strings.CutPrefix(to, "socket:["); err == nil && ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return own
}

// listening are the sockets that listen on one of kube-proxy's ports: the port by the socket's
// inode.
func listening(proc string) map[string]uint16 {
	out := map[string]uint16{}
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(proc, "self/net", table))
		if err != nil {
			continue
		}
		for in := bufio.NewScanner(f); in.Scan(); {
			// sl local rem st tx:rx tr:when retrnsmt uid timeout inode; proc(5)
			w := strings.Fields(in.Text())
			if len(w) < 10 || w[3] != "0A" {
				continue
			}
			_, port, _ := strings.Cut(w[1], ":")
			if b, err := hex.DecodeString(port); err == nil && len(b) == 2 {
				if p := uint16(b[0])<<8 | uint16(b[1]); slices.Contains(ports, p) {
					out[w[9]] = p
				}
			}
		}
		f.Close()
	}
	return out
}

// process finds a process of that name in this network namespace, where those of the node can be
// seen. One whose namespace cannot be determined counts.
func process(proc string) string {
	own, _ := os.Readlink(filepath.Join(proc, "self/ns/net"))
	all, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/comm"))
	for _, f := range all {
		if b, err := os.ReadFile(f); err != nil || strings.TrimSpace(string(b)) != "kube-proxy" {
			continue
		}
		if ns, err := os.Readlink(filepath.Join(filepath.Dir(f), "ns/net")); err == nil && own != "" && ns != own {
			continue
		}
		return "process " + filepath.Base(filepath.Dir(f))
	}
	return ""
}
