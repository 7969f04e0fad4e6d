// SPDX-License-Identifier: Apache-2.0

// Package test runs real labs. It needs root and what hack/setup.sh brings, takes
// about a minute with a filled cache (the first run builds Kubernetes), and is run
// with WEIR_LAB_TEST=1.
package test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-net/weir/lab/internal/cgroup"
	"github.com/weir-net/weir/lab/internal/cluster"
	"github.com/weir-net/weir/lab/internal/network"
	"github.com/weir-net/weir/lab/internal/nodeinit"
	"github.com/weir-net/weir/lab/internal/plan"
)

var program string

func TestMain(m *testing.M) {
	if os.Getenv("WEIR_LAB_TEST") == "" {
		fmt.Println("labs are not run: set WEIR_LAB_TEST=1 to run them")
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "weir-lab-test-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "weir-lab")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/weir-lab").CombinedOutput(); err != nil {
		fmt.Printf("build weir-lab: %v\n%s", err, out)
		return 1
	}
	// What is built once is built outside the tests' time.
	if out, err := exec.Command(program, "build").CombinedOutput(); err != nil {
		fmt.Printf("build the lab's programs: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// lab runs weir-lab for one lab and fails the test if it fails.
func lab(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("weir-lab %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func command(name string, args ...string) *exec.Cmd {
	return exec.Command(program, append([]string{"--name", name}, args...)...)
}

// removeLater removes a lab also when the test fails.
func removeLater(t *testing.T, name string) {
	t.Cleanup(func() {
		if out, err := command(name, "down").CombinedOutput(); err != nil {
			t.Errorf("remove lab %s: %v\n%s", name, err, out)
		}
	})
}

// owned lists the processes of a lab: all in its network namespaces or control
// groups.
func owned(t *testing.T, name string) []cluster.Process {
	t.Helper()
	spaces := map[uint64]bool{}
	found, err := network.Find(func(scoped string) bool { return plan.Owns(name, scoped) })
	if err != nil {
		t.Fatal(err)
	}
	for _, scoped := range found {
		var st syscall.Stat_t
		if err := syscall.Stat(network.Path(scoped), &st); err == nil {
			spaces[st.Ino] = true
		}
	}
	hs, err := cgroup.Load()
	if err != nil {
		t.Fatal(err)
	}
	pids := map[int]bool{}
	for _, g := range cgroup.Find(hs, func(n string) bool { return plan.Owns(name, n) }) {
		for _, pid := range cgroup.Processes(hs, g) {
			pids[pid] = true
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		var st syscall.Stat_t
		if pid, err := strconv.Atoi(e.Name()); err == nil && syscall.Stat(filepath.Join("/proc", e.Name(), "ns/net"), &st) == nil && spaces[st.Ino] {
			pids[pid] = true
		}
	}
	var out []cluster.Process
	for pid := range pids {
		if start, err := nodeinit.StartTime(pid); err == nil {
			out = append(out, cluster.Process{PID: pid, Start: start})
		}
	}
	return out
}

// assertGone fails the test for everything that a removed lab left behind.
func assertGone(t *testing.T, name string, were []cluster.Process) {
	t.Helper()
	for _, p := range append(were, owned(t, name)...) {
		if p.Alive() {
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
			if i := bytes.LastIndexByte(stat, ')'); i >= 0 && bytes.HasPrefix(stat[i:], []byte(") Z")) {
				continue // ended; its parent has not asked yet
			}
			t.Errorf("process %d is still there: %q", p.PID, cmdline)
		}
	}
	owns := func(scoped string) bool { return plan.Owns(name, scoped) }
	if left, err := network.Find(owns); err != nil || len(left) > 0 {
		t.Errorf("network namespaces are still there: %v %v", left, err)
	}
	hs, err := cgroup.Load()
	if err != nil {
		t.Fatal(err)
	}
	if left := cgroup.Find(hs, owns); len(left) > 0 {
		t.Errorf("control groups are still there: %v", left)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(line); len(f) > 4 && (owns(filepath.Base(f[4])) || strings.Contains(f[4], "/"+name+"/")) {
			t.Errorf("mount is still there: %s", line)
		}
	}
	for _, dir := range []string{filepath.Join(cluster.StateDir, name), filepath.Join(cache(t), "labs", name)} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("folder %s is still there (%v)", dir, err)
		}
	}
}

// assertMapGone waits a little, because the kernel frees maps some time after their
// last user went.
func assertMapGone(t *testing.T, name string) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		out, err := exec.Command("bpftool", "map", "show").Output()
		if err != nil {
			t.Fatalf("list maps: %v", err)
		}
		if !strings.Contains(string(out), "name "+name+" ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("map %s, which a node pinned, is still there", name)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func cache(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("WEIR_CACHE"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(home, ".cache", "weir")
}

func uniqueName(what string) string { return fmt.Sprintf("t%s%d", what, os.Getpid()%100000) }

func TestUpStatusExecDown(t *testing.T) {
	t.Parallel()
	name := uniqueName("full")
	removeLater(t, name)
	kubeconfig := filepath.Join(t.TempDir(), "config")
	lab(t, name, "up", "--proxy", "none", "--workers", "1", "--kubeconfig", kubeconfig)
	if raw, err := os.ReadFile(kubeconfig); err != nil || !bytes.Contains(raw, []byte("https://172.31.1.8:6443")) {
		t.Errorf("kubeconfig: %v %s", err, raw)
	}
	if out, err := command(name, "up", "--proxy", "none").CombinedOutput(); err == nil || !strings.Contains(string(out), "weir-lab down --name "+name) {
		t.Errorf("up over a lab: %v\n%s", err, out)
	}
	if out := lab(t, name, "status"); !strings.Contains(out, "worker1") {
		t.Errorf("status: %s", out)
	}
	nodes := lab(t, name, "exec", "cp", "--", "kubectl", "get", "nodes", "--no-headers")
	if strings.Count(nodes, " Ready ") != 2 || !strings.Contains(nodes, "control-plane") {
		t.Errorf("nodes: %s", nodes)
	}
	if same := lab(t, name, "kubectl", "get", "nodes", "-o", "name"); same != "node/cp\nnode/worker1\n" {
		t.Errorf("kubectl get nodes: %q", same)
	}
	testNode(t, name)
	testNetwork(t, name)

	pinned := "lab" + strconv.Itoa(os.Getpid()%100000)
	lab(t, name, "exec", "worker1", "--", "bpftool", "map", "create", "/sys/fs/bpf/"+pinned, "type", "array", "key", "4", "value", "4", "entries", "1", "name", pinned)

	were := owned(t, name)
	if len(were) < 8 {
		t.Errorf("only %d processes: %v", len(were), were)
	}
	lab(t, name, "down")
	assertGone(t, name, were)
	assertMapGone(t, pinned)
	lab(t, name, "down") // once more is no error
	if out, err := command(name, "status").CombinedOutput(); err == nil {
		t.Errorf("status of no lab: %s", out)
	}
}

// testNode looks at what a node is made of.
func testNode(t *testing.T, name string) {
	t.Helper()
	for what, c := range map[string]struct{ script, want string }{
		"host name":              {`hostname`, "worker1\n"},
		"own group":              {`sed -n 's/^0:://p' /proc/self/cgroup`, "/sys\n"},
		"group of its processes": {`sed -n 's/^0:://p' /proc/1/cgroup`, "/sys\n"},
		"own BPF file system":    {`mkdir /sys/fs/bpf/x && stat -f -c %T /sys/fs/bpf`, "bpf_fs\n"},
		"mounts are shared":      {`awk '$5 == "/sys/fs/bpf" || $5 == "/"' /proc/self/mountinfo | grep -vc shared:`, "0\n"},
		"writable places":        {`for d in /opt/cni/bin /etc/cni/net.d /var/lib/x /run/x; do mkdir -p $d && touch $d/probe && echo ok; done | sort -u`, "ok\n"},
		"congestion control":     {`cat /proc/sys/net/ipv4/tcp_congestion_control`, "reno\n"},
	} {
		// A failing last command of the script shows in its output.
		if out, _ := command(name, "exec", "worker1", "--", "sh", "-c", c.script).CombinedOutput(); string(out) != c.want {
			t.Errorf("%s: got %q, want %q", what, out, c.want)
		}
	}
	// The machine does not see what the node changed.
	if _, err := os.Stat("/sys/fs/bpf/x"); err == nil {
		t.Error("the node's BPF file system is the machine's")
	}
	if _, err := os.Stat("/etc/cni/net.d/probe"); err == nil {
		t.Error("the node's /etc is the machine's")
	}
}

// testNetwork checks who reaches whom, and that nothing leads out.
func testNetwork(t *testing.T, name string) {
	t.Helper()
	for _, from := range []string{"client1", "client3", "worker1", "cp"} {
		for _, to := range []string{"172.31.1.8", "172.31.1.207", "172.31.1.55", "172.31.2.55"} {
			if out, err := command(name, "exec", from, "--", "ping", "-c1", "-W30", to).CombinedOutput(); err != nil {
				t.Errorf("%s does not reach %s: %s", from, to, out)
			}
		}
		out, err := command(name, "exec", from, "--", "ping", "-c1", "-W30", "192.0.2.77").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "Unreachable") {
			t.Errorf("%s got no clear refusal for an address outside: %s", from, out)
		}
	}
	links := lab(t, name, "exec", "router", "--", "ip", "-o", "link")
	if strings.Count(links, "link/ether") != 2 {
		t.Errorf("the router has more than its two links: %s", links)
	}
}

// testBothFamilies checks that a lab of both families has both.
func testBothFamilies(t *testing.T, name string) {
	t.Helper()
	for _, from := range []string{"client1", "client3", "cp"} {
		for _, to := range []string{"172.31.1.8", "fd00:172:31:1::8", "fd00:172:31:1::55", "fd00:172:31:2::55"} {
			if out, err := command(name, "exec", from, "--", "ping", "-c1", "-W2", to).CombinedOutput(); err != nil {
				t.Errorf("%s does not reach %s: %s", from, to, out)
			}
		}
		out, err := command(name, "exec", from, "--", "ping", "-c1", "-W2", "2001:db8::77").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "unreachable: No route") {
			t.Errorf("%s got no clear refusal for an address outside: %s", from, out)
		}
	}
	addrs := lab(t, name, "kubectl", "get", "node", "cp", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	if addrs != "172.31.1.8 fd00:172:31:1::8" {
		t.Errorf("addresses of the node: %s", addrs)
	}
	svc := lab(t, name, "kubectl", "get", "servicecidrs", "-o", "jsonpath={.items[*].spec.cidrs[*]}")
	if svc != "10.96.0.0/16 fd00:10:96::/112" {
		t.Errorf("Service addresses: %s", svc)
	}
}

// startUntil starts a lab and waits until it has said a line.
func startUntil(t *testing.T, name, line string) (*exec.Cmd, <-chan string) {
	t.Helper()
	cmd := command(name, "up", "--proxy", "none", "--workers", "1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen, rest := make(chan bool, 1), make(chan string, 1)
	go func() {
		var all strings.Builder
		for s := bufio.NewScanner(out); s.Scan(); {
			all.WriteString(s.Text() + "\n")
			if strings.Contains(s.Text(), line) {
				seen <- true
			}
		}
		close(seen)
		rest <- all.String()
	}()
	select {
	case ok := <-seen:
		if !ok {
			t.Fatalf("up ended before it said %q:\n%s", line, <-rest)
		}
	case <-time.After(10 * time.Minute):
		_ = cmd.Process.Kill()
		t.Fatalf("up did not say %q", line)
	}
	return cmd, rest
}

func TestKilledUpIsRemoved(t *testing.T) {
	for i, line := range []string{"network: ", "start 2 nodes: ", "API server ready: "} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			name := uniqueName("kill" + strconv.Itoa(i))
			removeLater(t, name)
			cmd, _ := startUntil(t, name, line)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if out, err := command(name, "status").CombinedOutput(); err == nil || !strings.Contains(string(out), "cut short") {
				t.Errorf("status: %v\n%s", err, out)
			}
			were := owned(t, name)
			lab(t, name, "down")
			assertGone(t, name, were)
		})
	}
}

func TestInterruptedUpRemovesItself(t *testing.T) {
	t.Parallel()
	name := uniqueName("int")
	removeLater(t, name)
	cmd, rest := startUntil(t, name, "start 2 nodes: ")
	if out, err := command(name, "down").CombinedOutput(); err == nil || !strings.Contains(string(out), "is being started") {
		t.Errorf("down alongside up: %v\n%s", err, out)
	}
	were := owned(t, name)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	said := <-rest
	if err := cmd.Wait(); err == nil {
		t.Errorf("up did not fail:\n%s", said)
	}
	if !strings.Contains(said, "interrupted") {
		t.Errorf("up did not say that it was interrupted:\n%s", said)
	}
	assertGone(t, name, were)
}

func TestReadOnlyRoot(t *testing.T) {
	t.Parallel()
	name := uniqueName("ro")
	removeLater(t, name)
	lab(t, name, "up", "--proxy", "none", "--workers", "0", "--read-only-root")
	for _, dir := range []string{"/", "/etc", "/opt", "/usr", "/root"} {
		if out, err := command(name, "exec", "cp", "--", "touch", filepath.Join(dir, "lab-probe")).CombinedOutput(); err == nil || !strings.Contains(string(out), "Read-only") {
			t.Errorf("%s can be written to: %v %s", dir, err, out)
		}
	}
	for _, dir := range []string{"/opt/cni/bin", "/etc/cni/net.d", "/var/lib", "/var/log", "/run"} {
		if out, err := command(name, "exec", "cp", "--", "touch", filepath.Join(dir, "lab-probe")).CombinedOutput(); err != nil {
			t.Errorf("%s cannot be written to: %s", dir, out)
		}
	}
}

func TestTwoLabsAtOnce(t *testing.T) {
	t.Parallel()
	one, two := uniqueName("a"), uniqueName("a")+"-b"
	for name, family := range map[string]string{one: "ipv4", two: "dual"} {
		removeLater(t, name)
		lab(t, name, "up", "--proxy", "none", "--workers", "0", "--ip-family", family)
	}
	testBothFamilies(t, two)
	if out, err := command(one, "exec", "client1", "--", "ip", "-6", "-o", "addr", "show", "scope", "global").CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("a lab of IPv4 has other addresses: %v %s", err, out)
	}
	were := owned(t, one)
	lab(t, one, "down")
	assertGone(t, one, were)
	lab(t, two, "status") // the other is as healthy as before
}
