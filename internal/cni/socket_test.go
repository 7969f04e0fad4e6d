// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/localsock"
)

// serve runs the world's server at a socket until the test ends.
func (w *world) serve() (socket string) {
	w.t.Helper()
	dir, err := os.MkdirTemp("", "weir-cni") // short: a socket's path has at most 107 bytes
	if err != nil {
		w.t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	l, err := localsock.Listen(socket)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.s.Serve(ctx, l) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return socket
}

// run calls the plugin as a runtime does. extra are "KEY=VALUE" and win over the defaults.
func run(t testing.TB, command, container, conf string, ns *os.File, extra ...string) (map[string]any, int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Stdin = strings.NewReader(conf)
	cmd.Env = []string{"WEIR_CNI_TEST_PLUGIN=1", "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p-" + container + ";K8S_POD_INFRA_CONTAINER_ID=" + container + ";K8S_POD_UID=0b0e-1"}
	if ns != nil {
		cmd.ExtraFiles = []*os.File{ns}
		cmd.Env = append(cmd.Env, "CNI_NETNS=/proc/self/fd/3")
	}
	cmd.Env = append(cmd.Env, extra...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if strings.Contains(stderr.String(), "panic") || strings.Contains(stderr.String(), "goroutine") {
		t.Fatal("the plugin panicked:", stderr.String())
	}
	if len(out) == 0 && err == nil {
		return nil, 0
	}
	var parsed map[string]any
	if jerr := json.Unmarshal(out, &parsed); jerr != nil {
		t.Fatalf("%s: %v: not JSON: %q %s", command, err, out, stderr.String())
	}
	return parsed, cmd.ProcessState.ExitCode()
}

func netconf(socket, version, more string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":"weir","type":"weir-cni","socket":%q,"mtu":1400,"log_level":"info","datastore_type":"kubernetes","nodename":"n1","ipam":{"type":"calico-ipam","assign_ipv4":"true","assign_ipv6":"false"},"policy":{"type":"k8s"}%s}`, version, socket, more)
}

func TestPlugin(t *testing.T) {
	w := newWorld(t)
	socket := w.serve()
	for i, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		c, ns := fmt.Sprint("c", i), newNetns(t)
		res, code := run(t, "ADD", c, netconf(socket, version, ""), ns)
		if code != 0 || res["cniVersion"] != version || len(res["interfaces"].([]any)) != 2 || len(res["ips"].([]any)) != 1 || len(res["routes"].([]any)) != 1 {
			t.Fatal(version, code, res)
		}
		host, pod := res["interfaces"].([]any)[0].(map[string]any), res["interfaces"].([]any)[1].(map[string]any)
		if host["sandbox"] != nil || pod["name"] != "eth0" || pod["sandbox"] != "/proc/self/fd/3" {
			t.Error(version, host, pod)
		}
		if version == "1.1.0" && pod["mtu"] != 1400.0 {
			t.Error(pod)
		}
		raw, _ := json.Marshal(res)
		prev := `,"prevResult":` + string(raw)
		if version != "0.3.1" { // CHECK came with 0.4.0
			if res, code := run(t, "CHECK", c, netconf(socket, version, prev), ns); code != 0 {
				t.Error(version, res)
			}
			if res, code := run(t, "CHECK", c, netconf(socket, version, ""), ns); code != 1 || res["code"] != 7.0 {
				t.Error("CHECK without prevResult:", version, res)
			}
		}
		if res, code := run(t, "DEL", c, netconf(socket, version, prev), nil); code != 0 {
			t.Error(version, res)
		}
		fifo := filepath.Join(t.TempDir(), "fifo")
		unix.Mkfifo(fifo, 0o600)
		for _, netns := range []string{"/nonexistent", fifo, "/proc/self/ns/net", "/dev/null"} {
			if res, code := run(t, "DEL", c, netconf(socket, version, prev), nil, "CNI_ARGS=damaged", "CNI_NETNS="+netns); code != 0 {
				t.Error("DEL of an unknown container:", version, netns, res)
			}
		}
	}
	w.empty()
	if res, code := run(t, "VERSION", "", "", nil); code != 0 || len(res["supportedVersions"].([]any)) != 4 {
		t.Error(res)
	}
	if res, code := run(t, "STATUS", "", netconf(socket, "1.1.0", ""), nil); code != 0 {
		t.Error(res)
	}
	run(t, "ADD", "c9", netconf(socket, "1.1.0", ""), newNetns(t))
	if res, code := run(t, "GC", "", netconf(socket, "1.1.0", ""), nil); code != 1 || res["code"] != 7.0 || len(w.s.IPAM.Records()) != 1 {
		t.Error("GC without a list:", res)
	}
	if res, code := run(t, "GC", "", netconf(socket, "1.1.0", `,"cni.dev/valid-attachments":[]`), nil); code != 0 {
		t.Error(res)
	}
	w.empty()
}

func TestPluginWithoutAgent(t *testing.T) {
	ns := newNetns(t)
	stale := filepath.Join(t.TempDir(), "s")
	l, err := localsock.Listen(stale)
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // the file stays, as after SIGKILL
	for _, socket := range []string{"/nonexistent/weir.sock", stale} {
		for command, want := range map[string]float64{"ADD": 11, "DEL": 11, "STATUS": 50} {
			res, code := run(t, command, "c1", netconf(socket, "1.1.0", ""), ns, "WEIR_CNI_TEST_START_TIMEOUT=200ms")
			if code != 1 || res["code"] != want || !strings.Contains(res["msg"].(string), "weir-agent") || !strings.Contains(res["msg"].(string), socket) {
				t.Error(command, code, res)
			}
		}
	}
	if l, err = localsock.Listen(stale); err != nil { // the next agent takes the name over
		t.Fatal(err)
	}
	l.Close()
	file := filepath.Join(t.TempDir(), "f")
	os.WriteFile(file, nil, 0o600)
	if _, err := localsock.Listen(file); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Error(err)
	}
}

// TestPluginWaits: pods that come and go while the agent is started again are late, not failed. The
// agent is away, ends before it answers, and has not finished its start.
func TestPluginWaits(t *testing.T) {
	w := newWorld(t)
	ns := newNetns(t)
	socket := filepath.Join(t.TempDir(), "s")
	begin := func() (code chan int) {
		code = make(chan int, 1)
		go func() {
			_, c := run(t, "ADD", "c1", netconf(socket, "1.1.0", ""), ns)
			code <- c
		}()
		return code
	}
	listen := func() *net.UnixListener {
		l, err := localsock.Listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	code := begin()
	dying := listen()
	conn, err := dying.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	if _, f, err := wire.ReadRequest(conn); err != nil {
		t.Fatal(err)
	} else {
		f.Close()
	}
	conn.Close()
	dying.Close()
	var asked atomic.Int32
	w.s.Ready = func() error {
		if asked.Add(1) < 3 {
			return errors.New("the cluster was not read yet")
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	l := listen()
	go func() { done <- w.s.Serve(ctx, l) }()
	if c := <-code; c != 0 || len(w.s.IPAM.Records()) != 1 || asked.Load() < 3 {
		t.Errorf("code %d, records %v, asked %d times", c, w.s.IPAM.Records(), asked.Load())
	}
	asked.Store(0)
	w.s.Ready = func() error {
		asked.Add(1)
		return &LimitedError{"the blocks are full"}
	}
	if res, c := run(t, "ADD", "c2", netconf(socket, "1.1.0", ""), newNetns(t)); c != 1 || !strings.Contains(res["msg"].(string), "full") || asked.Load() != 1 {
		t.Errorf("what does not pass by waiting: %v, asked %d times", res, asked.Load())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestHostileCalls: whatever comes in, the plugin answers with a CNI error that says what is wrong.
func TestHostileCalls(t *testing.T) {
	hostile.Record(t, "a network configuration of megabytes is read into memory by each call of the runtime", hostile.Operator, hostile.ControlPlane, hostile.Both)
	w := newWorld(t)
	socket := w.serve()
	good := netconf(socket, "1.1.0", "")
	ns := newNetns(t)
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	os.WriteFile(file, []byte("x"), 0o600)
	unix.Mkfifo(fifo, 0o600)
	args := func(s string) string { return "CNI_ARGS=" + s }
	for _, c := range []struct {
		name, command, container, conf, want string
		code                                 float64
		env                                  []string
	}{
		{"no stdin", "ADD", "c", "", "unmarshall", 6, nil},
		{"truncated", "ADD", "c", good[:len(good)-9], "unmarshall", 6, nil},
		{"garbage", "ADD", "c", "\x00\xff{{{", "unmarshall", 6, nil},
		{"array", "ADD", "c", "[]", "unmarshall", 6, nil},
		{"deep", "ADD", "c", strings.Repeat("[", 20000), "unmarshall", 6, nil},
		{"huge", "ADD", "c", good + strings.Repeat(" ", 2<<20), "larger than", 5, nil},
		{"no name", "ADD", "c", `{"cniVersion":"1.1.0"}`, "name", 7, nil},
		{"old version", "ADD", "c", netconf(socket, "0.2.0", ""), "incompatible", 1, nil},
		{"bad version", "ADD", "c", netconf(socket, "x.y", ""), "", 1, nil},
		{"types", "ADD", "c", `{"cniVersion":"1.1.0","name":"weir","mtu":"big"}`, "mtu", 6, nil},
		{"mtu", "ADD", "c", `{"cniVersion":"1.1.0","name":"weir","mtu":-1}`, "mtu", 7, nil},
		{"socket", "ADD", "c", netconf("relative", "1.1.0", ""), "socket", 7, nil},
		{"pools", "ADD", "c", strings.Replace(good, `"assign_ipv4"`, `"ipv4_pools":["no such"],"assign_ipv4"`, 1), "no such", 100, nil},
		{"boolean", "ADD", "c", strings.Replace(good, `"true"`, `"maybe"`, 1), "maybe", 6, nil},
		{"chained", "ADD", "c", netconf(socket, "1.1.0", `,"prevResult":{"cniVersion":"1.1.0"}`), "first plugin", 7, nil},
		{"container", "ADD", "../../etc", good, "invalid characters", 4, nil},
		{"long container", "ADD", strings.Repeat("a", 200), good, "container id", 4, []string{args("K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p")}},
		{"no container", "ADD", "", good, "CNI_CONTAINERID", 4, nil},
		{"ifname path", "ADD", "c", good, "", 4, []string{"CNI_IFNAME=../../x"}},
		{"ifname long", "ADD", "c", good, "", 4, []string{"CNI_IFNAME=" + strings.Repeat("e", 16)}},
		{"ifname lo", "ADD", "c", good, "lo", 4, []string{"CNI_IFNAME=lo"}},
		{"ifname all", "ADD", "c", good, "all", 4, []string{"CNI_IFNAME=all"}},
		{"netns file", "ADD", "c", good, "not a namespace", 8, []string{"CNI_NETNS=" + file}},
		{"netns fifo", "ADD", "c", good, "not a namespace", 8, []string{"CNI_NETNS=" + fifo}},
		{"netns missing", "ADD", "c", good, "cannot be opened", 8, []string{"CNI_NETNS=/nonexistent"}},
		{"netns other kind", "ADD", "c", good, "not a network namespace", 8, []string{"CNI_NETNS=/proc/self/ns/mnt"}},
		{"netns own", "ADD", "c", good, "host's own", 8, []string{"CNI_NETNS=/proc/self/ns/net"}},
		{"no args", "ADD", "c", good, "K8S_POD_NAMESPACE", 4, []string{args("")}},
		{"args not pairs", "ADD", "c", good, "KEY=VALUE", 4, []string{args("a;b")}},
		{"args namespace", "ADD", "c", good, "K8S_POD_NAMESPACE", 4, []string{args("K8S_POD_NAMESPACE=../x;K8S_POD_NAME=p")}},
		{"args name", "ADD", "c", good, "K8S_POD_NAME", 4, []string{args("K8S_POD_NAMESPACE=ns;K8S_POD_NAME=a/b\n")}},
		{"args uid", "ADD", "c", good, "K8S_POD_UID", 4, []string{args("K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=;K8S_POD_UID=a b")}},
		{"args huge", "ADD", "c", good, "4096", 4, []string{args(strings.Repeat("a=b;", 5000))}},
		{"command", "FLY", "c", good, "FLY", 4, nil},
		{"check unknown", "CHECK", "c", netconf(socket, "1.1.0", `,"prevResult":{"cniVersion":"1.1.0","ips":[]}`), "no address", 3, nil},
		{"check prevResult", "CHECK", "c", netconf(socket, "1.1.0", `,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"x"}]}`), "prevResult", 6, nil},
		{"gc entries", "GC", "", netconf(socket, "1.1.0", `,"cni.dev/valid-attachments":[{"containerID":"x"}]`), "without", 7, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, code := run(t, c.command, c.container, c.conf, ns, c.env...)
			msg, _ := res["msg"].(string)
			details, _ := res["details"].(string)
			if code != 1 || res["code"] != c.code || !strings.Contains(msg+details, c.want) {
				t.Errorf("exit %d, %v; want code %v and %q", code, res, c.code, c.want)
			}
		})
	}
	w.empty()
}

// TestHostileSocket: the agent survives what is not the protocol, and goes on answering.
func TestHostileSocket(t *testing.T) {
	hostile.Record(t, "what is no call, or brings descriptors that nobody asked for, uses up what the agent's socket has", hostile.Operator, hostile.ControlPlane, hostile.Both)
	w := newWorld(t)
	socket := w.serve()
	send := func(name string, data []byte, fds ...int) {
		t.Helper()
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(await.Patience))
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		c.WriteMsgUnix(data, rights, nil)
		c.CloseWrite()
		body := make([]byte, 4096)
		n, _ := c.Read(body)
		if n > 0 && !strings.HasPrefix(string(body[:n]), "WCNI") {
			t.Errorf("%s: answer %q", name, body[:n])
		}
	}
	frame := func(body string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte("WCNI"), uint32(len(body))), body...)
	}
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd := int(file.Fd())
	before := openFiles(t)
	send("nothing", nil)
	send("garbage", []byte("GET / HTTP/1.1\r\n\r\n"))
	send("short", []byte("WC"))
	send("truncated", append([]byte("WCNI"), 0, 0, 1, 0, '{'))
	send("oversize", append([]byte("WCNI"), 255, 255, 255, 255))
	send("not JSON", frame("{"))
	send("deep", frame(strings.Repeat("[", 100000)))
	send("wrong type", frame(`{"version":"x"}`))
	send("no version", frame(`{}`))
	for _, command := range []string{"ADD", "CHECK"} {
		req := request(command, "p", "c")
		body, _ := json.Marshal(req)
		send(command+" without a namespace", frame(string(body)))
		send(command+" with a file", frame(string(body)), fd)
		send(command+" with many files", frame(string(body)), fd, fd, fd, fd)
		req.ContainerID = "../../../etc"
		body, _ = json.Marshal(req)
		send(command+" with a path", frame(string(body)), fd)
	}
	if got, err := wire.Call(ctx10(t), socket, request("STATUS", "", ""), nil); err != nil {
		t.Error("the agent does not answer any more:", got, err)
	}
	await.That(t, "closing what came", func() error {
		if after := openFiles(t); after > before+2 {
			return fmt.Errorf("%d descriptors before, %d after", before, after)
		}
		return nil
	})
	w.empty()
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestOnlyRoot: the socket is closed to others, and so is the agent should the socket be open.
func TestOnlyRoot(t *testing.T) {
	w := newWorld(t)
	socket := w.serve()
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info.Mode(), err)
	}
	os.Chmod(filepath.Dir(socket), 0o755)
	os.Chmod(socket, 0o666)
	bin, _ := os.ReadFile(os.Args[0])
	exe := filepath.Join(filepath.Dir(socket), "plugin")
	if err := os.WriteFile(exe, bin, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Env = []string{"WEIR_CNI_TEST_PLUGIN=1", "CNI_COMMAND=STATUS", "CNI_PATH=/x"}
	cmd.Stdin = strings.NewReader(netconf(socket, "1.1.0", ""))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), `"code": 50`) {
		t.Errorf("%v %s", err, out)
	}
	if _, err := wire.Call(ctx10(t), socket, request("STATUS", "", ""), nil); err != nil {
		t.Error(err)
	}
}

// TestKilledPlugin: a plugin that dies during its ADD leaves nothing.
func TestKilledPlugin(t *testing.T) {
	w := newWorld(t)
	reached, goOn := make(chan bool), make(chan bool)
	w.enforcer.attach = func() { reached <- true; <-goOn }
	socket := w.serve()
	ns := newNetns(t)
	cmd := exec.Command(os.Args[0])
	cmd.Stdin = strings.NewReader(netconf(socket, "1.1.0", ""))
	cmd.ExtraFiles = []*os.File{ns}
	cmd.Env = []string{"WEIR_CNI_TEST_PLUGIN=1", "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_PATH=/x", "CNI_NETNS=/proc/self/fd/3",
		"CNI_ARGS=K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-reached
	cmd.Process.Kill()
	cmd.Wait()
	time.Sleep(20 * time.Millisecond)
	close(goOn)
	await.That(t, "giving back the address", func() error {
		if n := len(w.s.IPAM.Records()); n > 0 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	w.empty()
}

// BenchmarkAdd is the agent's part of an ADD; the DELs are not counted.
func BenchmarkAdd(b *testing.B) {
	w := newWorld(b)
	ns := newNetns(b)
	for b.Loop() {
		w.add("p", "c", ns)
		b.StopTimer()
		if err := w.do("DEL", "p", "c", nil); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkPluginAdd is a whole ADD with the start of the plugin, with 100 pods on the node. It
// reports percentiles in milliseconds. The plugin here is the test binary, which starts more
// slowly.
func BenchmarkPluginAdd(b *testing.B) {
	w := newWorld(b)
	socket := w.serve()
	exe := os.Getenv("WEIR_CNI_BENCH_PLUGIN") // a real weir-cni
	for i := range 100 {
		w.add(fmt.Sprint("n", i), fmt.Sprint("n", i), newNetns(b))
	}
	ns := newNetns(b)
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		if exe == "" {
			if res, code := run(b, "ADD", "c", netconf(socket, "1.1.0", ""), ns); code != 0 {
				b.Fatal(res)
			}
		} else {
			cmd := exec.Command(exe)
			cmd.Stdin = strings.NewReader(netconf(socket, "1.1.0", ""))
			cmd.ExtraFiles = []*os.File{ns}
			cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_IFNAME=eth0", "CNI_PATH=/x", "CNI_NETNS=/proc/self/fd/3",
				"CNI_ARGS=K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p-c"}
			if out, err := cmd.Output(); err != nil {
				b.Fatal(err, string(out))
			}
		}
		times = append(times, time.Since(begin))
		b.StopTimer()
		if err := w.do("DEL", "p-c", "c", nil); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	reportPercentiles(b, times)
}

func reportPercentiles(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	for name, q := range map[string]float64{"p50-ms": 0.50, "p99-ms": 0.99} {
		b.ReportMetric(float64(times[int(q*float64(len(times)-1))].Microseconds())/1000, name)
	}
}
