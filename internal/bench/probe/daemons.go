// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Node says what a node is, as a process in the node's own namespaces sees it.
type Node struct {
	Kernel     string   `json:"kernel"`
	Model      string   `json:"cpu"` // of its CPUs
	CPUs       int      `json:"cpus"`
	MemoryMiB  float64  `json:"memory_mib"`
	Boot       string   `json:"boot"`
	Congestion string   `json:"congestion"` // of TCP, where nothing else is asked for
	MTU        int      `json:"mtu"`        // of the device with the default route
	KubeProxy  string   `json:"kube_proxy,omitempty"`
	Daemons    []Daemon `json:"daemons"`
}

// Daemon is a process of the cluster's network, by its name.
type Daemon struct {
	Name string  `json:"name"`
	CPU  float64 `json:"cpu_s"` // since its start
	RSS  float64 `json:"rss_mib"`
}

// daemonNames are the processes that make pod networks, Services or policy, as /proc/PID/comm has
// them (15 bytes at most).
var daemonNames = []string{
	"weir-agent", "weir-controller", "weir-fanout", "kube-proxy", "calico-node", "calico-typha", "bird", "bird6", "confd", "felix", "cilium-agent", "cilium-operator", "cilium-envoy",
	"flanneld", "kube-router", "kindnetd", "antrea-agent", "antrea-controlle", "ovs-vswitchd", "ovsdb-server", "ovn-controller", "ovnkube", "aws-k8s-agent",
	"controller", "azure-cns", "azure-npm", "weaver", "weave-npc", "romana_agent", "netd", "kube-ovn-daemon", "kube-network-p",
}

// ReadDescription reads what the node is.
func ReadDescription(ctx context.Context) (Node, error) {
	r, err := ReadNode()
	if err != nil {
		return Node{}, err
	}
	n := Node{CPUs: r.CPUs, Boot: r.Boot, Kernel: word("/proc/sys/kernel/osrelease"), Congestion: word("/proc/sys/net/ipv4/tcp_congestion_control"),
		Model: field("/proc/cpuinfo", "model name"), KubeProxy: proxyMode(ctx, "http://127.0.0.1:10249/proxyMode")}
	if n.Model == "" { // as on arm64
		n.Model = runtime.GOARCH
	}
	var kib float64
	if _, err := fmt.Sscan(field("/proc/meminfo", "MemTotal"), &kib); err == nil {
		n.MemoryMiB = kib / 1024
	}
	n.MTU = defaultMTU()
	n.Daemons, err = ReadDaemons("/proc")
	return n, err
}

func word(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// field is the first value of a name in a file of "name : value" lines.
func field(path, name string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// defaultMTU is that of the device with the default route; 0 when there is none.
func defaultMTU() int {
	b, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == "00000000" {
			mtu, err := strconv.Atoi(word(filepath.Join("/sys/class/net", f[0], "mtu")))
			if err == nil {
				return mtu
			}
		}
	}
	return 0
}

// proxyMode asks a kube-proxy of this node for its mode; empty where there is none.
func proxyMode(ctx context.Context, url string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return ""
	}
	defer a.Body.Close()
	b, err := io.ReadAll(io.LimitReader(a.Body, 64))
	if err != nil || a.StatusCode != http.StatusOK {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// ReadDaemons looks through the processes that can be seen: in a pod with the node's process
// namespace, all of the node. Processes of one name are one daemon.
func ReadDaemons(proc string) ([]Daemon, error) {
	folders, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("looking for the daemons of the network: %w", err)
	}
	var out []Daemon
	for _, f := range folders {
		if _, err := strconv.Atoi(f.Name()); err != nil {
			continue
		}
		dir := filepath.Join(proc, f.Name())
		name := word(filepath.Join(dir, "comm"))
		if !slices.Contains(daemonNames, name) {
			continue
		}
		d, ok := readDaemon(dir)
		if !ok {
			continue // it ended meanwhile
		}
		i := slices.IndexFunc(out, func(o Daemon) bool { return o.Name == name })
		if i < 0 {
			i = len(out)
			out = append(out, Daemon{Name: name})
		}
		out[i].CPU += d.CPU
		out[i].RSS += d.RSS
	}
	slices.SortFunc(out, func(a, b Daemon) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// readDaemon reads utime and stime (fields 14 and 15 of proc_pid_stat(5)) and VmRSS.
func readDaemon(dir string) (Daemon, bool) {
	stat := word(filepath.Join(dir, "stat"))
	// The name, in brackets, may hold anything.
	_, after, ok := strings.Cut(stat[max(0, strings.LastIndex(stat, ")")):], ") ")
	f := strings.Fields(after)
	if !ok || len(f) < 13 {
		return Daemon{}, false
	}
	user, err := strconv.ParseFloat(f[11], 64)
	if err != nil {
		return Daemon{}, false
	}
	system, err := strconv.ParseFloat(f[12], 64)
	if err != nil {
		return Daemon{}, false
	}
	var kib float64
	if _, err := fmt.Sscan(field(filepath.Join(dir, "status"), "VmRSS"), &kib); err != nil {
		return Daemon{}, false
	}
	return Daemon{CPU: (user + system) / ticks, RSS: kib / 1024}, true
}
