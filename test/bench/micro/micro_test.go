// SPDX-License-Identifier: Apache-2.0

package micro

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cilium "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/packet"
)

// What the programs return (linux/pkt_cls.h).
const (
	actOK       = 0
	actShot     = 2
	actRedirect = 7
)

// hot is how often a frame goes through a program in one call: the TTL bears no more. Then caches
// and branch predictors know the packet. Where a program changes what it does for the same packet,
// each packet is a call of its own ("cold": the system call before it has used the caches).
const (
	hot     = 240
	batches = 400
	singles = 20000
)

// Row is one line of out/bench-micro.json.
type Row struct {
	Name    string  `json:"row"`
	Program string  `json:"program"`
	Mode    string  `json:"mode"` // hot or cold
	NS      float64 `json:"ns"`   // median, less the empty program
	P99     float64 `json:"p99_ns"`
	EmptyNS float64 `json:"empty_ns"`
	Packets int     `json:"packets"`
}

type result struct {
	Machine bench.Machine `json:"machine"`
	Rows    []Row         `json:"rows"`
}

var (
	rowsMu sync.Mutex
	rows   []Row
)

const childEnv = "WEIR_MICRO_CHILD"

// TestMain runs the benchmarks in a child process with a network namespace of its own, which goes
// with it.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(childEnv) == "" {
		os.Exit(inNamespace())
	}
	code := m.Run()
	if code == 0 && len(rows) > 0 {
		if err := report(); err != nil {
			fmt.Fprintln(os.Stderr, "bench-micro:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func inNamespace() int {
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread that started the child
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-micro: it needs root for a network namespace and eBPF:", err)
		return 1
	}
	return 0
}

func report() error {
	t := bench.Table{Head: []string{"packet", "program", "mode", "ns", "p99 ns"}}
	for _, r := range rows {
		t.Add(r.Name, r.Program, r.Mode, r.NS, r.P99)
	}
	m := bench.ThisMachine()
	fmt.Printf("\nNanoseconds a packet, less an empty program's %.0f (hot) or %.0f (cold); %v\n", empty.hot, empty.cold, m)
	if err := t.Write(os.Stdout, false); err != nil {
		return err
	}
	root, err := repository()
	if err != nil {
		return err
	}
	path := filepath.Join(root, "out", "bench-micro.json")
	if err := bench.WriteJSON(path, result{Machine: m, Rows: rows}); err != nil {
		return err
	}
	fmt.Println("bench-micro: written to", path)
	return nil
}

// repository is the folder of go.mod above this package.
func repository() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no go.mod above this package: %w", err)
}

// fixture is the loaded node; all benchmarks of a process share it and take turns.
type fixture struct {
	*offline.Node
	links links
}

var empty struct {
	prog      *cilium.Program
	hot, cold float64
}

var shared = sync.OnceValues(func() (*fixture, error) {
	l, err := makeLinks()
	if err != nil {
		return nil, err
	}
	o, err := offline.Load(offline.Options{HostDevice: l.host,
		Sizes: map[string]uint32{"weir_flows": 512000, "weir_flows_new": 128000, "weir_services": 262144, "weir_backends": 1048576, "weir_live": 1048576}})
	if err != nil {
		return nil, err
	}
	// In XDP a frame counts for the uplink only with the uplink's MAC address.
	o.SetUplinks(map[int][6]byte{l.uplink: uplinkMAC})
	if empty.prog, err = emptyProgram(); err != nil {
		return nil, err
	}
	frame := marshal("tcp 172.20.0.1:1 > 10.0.0.1:2 . ttl=255")
	if empty.hot, _, err = many(empty.prog, [][]byte{frame}, l.uplink, hot, batches, actOK); err != nil {
		return nil, err
	}
	empty.cold, _, err = many(empty.prog, [][]byte{frame}, l.uplink, 1, singles, actOK)
	return &fixture{Node: o, links: l}, err
})

// node returns the fixture with an empty flow table and the state without policy, or with one for
// so many peers.
func node(b *testing.B, peers int) *fixture {
	b.Helper()
	f, err := shared()
	if err != nil {
		b.Fatal(err)
	}
	s := newState(f.links)
	if peers > 0 {
		withPolicy(s, peers)
	}
	if err := f.Apply(s); err != nil {
		b.Fatal(err)
	}
	if err := f.ResetFlows(); err != nil {
		b.Fatal(err)
	}
	return f
}

func marshal(text string) []byte {
	p := packet.MustParse(text)
	p.DstMAC = uplinkMAC
	if p.IP.Src == podRemote || p.IP.Src == otherNode {
		p.SrcMAC = otherMAC
	}
	b, err := p.Marshal()
	if err != nil {
		panic(err)
	}
	for len(b) < 64 {
		b = append(b, 0)
	}
	return b
}

// step sends one packet through a program, to bring a flow about.
func (f *fixture) step(b *testing.B, program string, ifindex int, text string, want uint32) {
	b.Helper()
	got, _, _, err := run(f.Programs[program], marshal(text), ifindex, 1)
	if err != nil {
		b.Fatal(err)
	}
	if got != want {
		b.Fatalf("%s at %s: returned %d, want %d", text, program, got, want)
	}
}

// many calls a program `calls` times, with one frame after the other, `repeat` runs each, and
// returns the median and the 99th percentile of a run's ns.
func many(p *cilium.Program, frames [][]byte, ifindex, repeat, calls int, want uint32) (median, p99 float64, err error) {
	sample, err := each(p, frames, ifindex, repeat, calls, want)
	if err != nil {
		return 0, 0, err
	}
	s := bench.Summarize(sample)
	return s.P50, s.P99, nil
}

// each is many with the ns of every call.
func each(p *cilium.Program, frames [][]byte, ifindex, repeat, calls int, want uint32) ([]float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		defer unix.SchedSetaffinity(0, &set)
		one := unix.CPUSet{}
		for cpu := range 64 {
			if set.IsSet(cpu) {
				one.Set(cpu)
				break
			}
		}
		unix.SchedSetaffinity(0, &one)
	}
	sample := make([]float64, 0, calls)
	for i := range calls {
		got, d, _, err := run(p, frames[i%len(frames)], ifindex, repeat)
		if err != nil {
			return nil, err
		}
		if got != want {
			return nil, fmt.Errorf("call %d returned %d, want %d", i, got, want)
		}
		sample = append(sample, float64(d)/float64(time.Nanosecond))
	}
	return sample, nil
}

// established measures a packet of a flow that is there.
func (f *fixture) established(b *testing.B, name, program string, ifindex int, text string, want uint32) {
	b.Helper()
	f.measure(b, name, program, ifindex, [][]byte{marshal(text)}, hot, want)
}

// fresh measures the first packets of as many flows as there are packets.
func (f *fixture) fresh(b *testing.B, name, program string, ifindex int, texts []string, want uint32) {
	b.Helper()
	frames := make([][]byte, len(texts))
	for i, t := range texts {
		frames[i] = marshal(t)
	}
	f.measure(b, name, program, ifindex, frames, 1, want)
}

func (f *fixture) measure(b *testing.B, name, program string, ifindex int, frames [][]byte, repeat int, want uint32) {
	b.Helper()
	calls, nothing, mode := batches, empty.hot, "hot"
	if repeat == 1 {
		calls, nothing, mode = len(frames), empty.cold, "cold"
		if calls == 1 {
			calls = singles
		}
	}
	var median, p99 float64
	for range b.N {
		var err error
		if median, p99, err = many(f.Programs[program], frames, ifindex, repeat, calls, want); err != nil {
			b.Fatal(err)
		}
	}
	r := Row{Name: name, Program: strings.TrimPrefix(program, "weir_"), Mode: mode, NS: median - nothing, P99: p99 - nothing,
		EmptyNS: nothing, Packets: calls * repeat}
	b.ReportMetric(r.NS, "ns/packet")
	b.ReportMetric(0, "ns/op")
	record(r)
}

// record keeps a row for the report, in the place of an earlier one of the same name.
func record(r Row) {
	rowsMu.Lock()
	defer rowsMu.Unlock()
	for i := range rows {
		if rows[i].Name == r.Name && rows[i].Program == r.Program && rows[i].Mode == r.Mode {
			rows[i] = r
			return
		}
	}
	rows = append(rows, r)
}

// syns are the first packets of n connections, from the addresses that from returns, with different
// ports.
func syns(n int, from func(i int) string, to string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("tcp %s:%d > %s S ttl=64", from(i), 1024+i%60000, to)
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func always(addr string) func(int) string { return func(int) string { return addr } }
