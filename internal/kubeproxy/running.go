package kubeproxy

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ports are where a kube-proxy listens unless it is told otherwise: health and metrics.
var ports = []uint16{10256, 10249}

// running says by what a kube-proxy is seen on this node, "" when none is; known is false while that
// cannot be said.
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
	own := map[string]bool{}
	fds, _ := filepath.Glob(filepath.Join(proc, "self/fd/*"))
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			own[to] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(proc, "self/net", table))
		if err != nil {
			continue
		}
		defer f.Close()
		for in := bufio.NewScanner(f); in.Scan(); {
			// sl local rem st tx:rx tr:when retrnsmt uid timeout inode; proc(5)
			w := strings.Fields(in.Text())
			if len(w) < 10 || w[3] != "0A" || own["socket:["+w[9]+"]"] {
				continue
			}
			_, port, _ := strings.Cut(w[1], ":")
			b, err := hex.DecodeString(port)
			if err != nil || len(b) != 2 {
				continue
			}
			for _, p := range ports {
				if p == uint16(b[0])<<8|uint16(b[1]) {
					return fmt.Sprintf("somebody listens on TCP port %d", p)
				}
			}
		}
	}
	return ""
}

// process finds a process of that name in this network namespace, where those of the node can be seen. One whose namespace cannot
// be told counts.
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
