// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
)

// place is where the traffic program can run: a machine, or a pod's network on its node.
type place struct {
	*lab
	machine string
	pod, ns string // empty = the machine itself
	pid     string // of the pod, on its node
	addr    string
	addr6   string // in labs of both families
}

func (l *lab) host(machine, addr string) *place { return &place{lab: l, machine: machine, addr: addr} }

func (l *lab) client(i int) *place {
	return l.host(fmt.Sprintf("client%d", i), []string{client1Addr, client2Addr, client3Addr}[i-1])
}

// six is the same place, known by its IPv6 address.
func (p *place) six() *place {
	other := *p
	other.addr, other.addr6 = p.addr6, ""
	return &other
}

func (p *place) String() string {
	if p.pod != "" {
		return "pod " + p.pod
	}
	return p.machine
}

// inside is a command line that runs args there.
func (p *place) inside(args ...string) []string {
	if p.pid != "" {
		args = append([]string{"nsenter", "--net=/proc/" + p.pid + "/ns/net", "--"}, args...)
	}
	return append([]string{p.machine, "--"}, args...)
}

// do runs any command there.
func (p *place) do(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return output(p.command(ctx, "exec", p.inside(args...)...), "")
}

// dialResult is what traffic's dial and datagrams say.
type dialResult struct {
	Attempts int      `json:"attempts"`
	Failed   int      `json:"failed"`
	Slow     int      `json:"slow"`
	P50MS    float64  `json:"p50_ms"`
	P99MS    float64  `json:"p99_ms"`
	MaxMS    float64  `json:"max_ms"`
	Errors   []string `json:"errors"`
	Names    []string `json:"names"`
	Seen     []string `json:"seen"`
	Peers    []string `json:"peers"`
}

func (r dialResult) String() string {
	return fmt.Sprintf("%d attempts, %d failed, %d slow, p50 %.1f ms, p99 %.1f ms, max %.1f ms, names %v, seen %v, errors %v",
		r.Attempts, r.Failed, r.Slow, r.P50MS, r.P99MS, r.MaxMS, r.Names, r.Seen, r.Errors)
}

// dial makes count connections, or sends count datagrams, and says what became of them.
func (p *place) dial(t *testing.T, to string, count int, args ...string) dialResult {
	t.Helper()
	r, err := p.tryDial(to, count, args...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (p *place) tryDial(to string, count int, args ...string) (r dialResult, err error) {
	argv := append([]string{"env", "TRAFFIC_PEERS=1", p.traffic, "dial", to, "--count", fmt.Sprint(count), "--timeout", "20s"}, args...)
	out, err := p.do(argv...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &r)
	}
	if err != nil {
		err = fmt.Errorf("%v dials %s: %w", p, to, err)
	}
	return r, err
}

// reaches fails the test unless all connections get to a server of that name, which sees that
// address. An empty name or address is not looked at.
func (p *place) reaches(t *testing.T, to, name, seen string, args ...string) {
	t.Helper()
	udp := slices.Contains(args, "--udp")
	r := p.dial(t, to, 5, args...)
	if udp && r.Failed > 1 { // sent at once, while a queue of the machine was full: a fault lasts
		t.Logf("%v does not reach %s %v at first: %v", p, to, args, r)
		r = p.dial(t, to, 5, args...)
	}
	switch {
	case r.Failed > 1 || r.Failed > 0 && !udp: // one datagram may be lost by a busy kernel
		t.Errorf("%v does not reach %s %v: %v", p, to, args, r)
	case name != "" && (len(r.Names) != 1 || r.Names[0] != name):
		t.Errorf("%v reaches %v at %s %v, want %s", p, r.Names, to, args, name)
	case seen != "" && (len(r.Seen) != 1 || r.Seen[0] != seen):
		t.Errorf("%v is seen as %v at %s %v, want %s", p, r.Seen, to, args, seen)
	}
}

// refused fails the test when any connection gets through.
func (p *place) refused(t *testing.T, to string, args ...string) {
	t.Helper()
	allRefused(t, p.to(to, args...))
}

// way is who dials what.
type way struct {
	from *place
	to   string
	args []string
}

func (p *place) to(to string, args ...string) way { return way{p, to, args} }

// allRefused is refused for several ways at once.
func allRefused(t *testing.T, ways ...way) {
	t.Helper()
	var all sync.WaitGroup
	for _, w := range ways {
		all.Go(func() {
			r, err := w.from.tryDial(w.to, 3, append(w.args, "--timeout", "700ms")...)
			if err != nil {
				t.Error(err)
			} else if r.Failed < r.Attempts {
				t.Errorf("%v reaches %s %v, and must not: %v", w.from, w.to, w.args, r)
			}
		})
	}
	all.Wait()
}

// running is a traffic program that goes on until it is stopped.
type running struct {
	what  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	say   bytes.Buffer
	end   sync.Once
	err   error

	mu    sync.Mutex
	lines []string
	ended chan struct{} // when the output ended
}

// begin starts the traffic program and returns once it has said a first line.
func (p *place) begin(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{what: fmt.Sprintf("%v: %s", p, strings.Join(args, " ")), ended: make(chan struct{})}
	r.cmd = p.command(context.Background(), "exec", p.inside(append([]string{p.traffic}, args...)...)...)
	r.cmd.Stderr = &r.say
	var err error
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", r.what, err)
	}
	t.Cleanup(func() { r.stop() })
	first := make(chan struct{})
	go func() {
		defer close(r.ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			r.mu.Lock()
			if r.lines = append(r.lines, s.Text()); len(r.lines) == 1 {
				close(first)
			}
			r.mu.Unlock()
		}
	}()
	select {
	case <-first:
	case <-r.ended:
	case <-time.After(await.Patience):
		r.stop()
		t.Fatalf("%s: did not begin: %s", r.what, r.say.String())
	}
	if lines := r.seen(); len(lines) == 0 {
		r.stop()
		t.Fatalf("%s: ended at once: %s", r.what, r.say.String())
	}
	return r
}

func (r *running) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.lines...)
}

// stop ends it and returns its last line.
func (r *running) stop() string {
	r.end.Do(func() {
		r.stdin.Close()
		select {
		case <-r.ended:
		case <-time.After(await.Patience):
			_ = r.cmd.Process.Kill()
		}
		r.err = r.cmd.Wait()
	})
	if lines := r.seen(); len(lines) > 0 {
		return lines[len(lines)-1]
	}
	return ""
}

// stopAll ends all of them at once: one that waits for what is still on its way holds up no other.
func stopAll(all ...[]*running) {
	var wg sync.WaitGroup
	for _, r := range slices.Concat(all...) {
		wg.Go(func() { r.stop() })
	}
	wg.Wait()
}

// result ends it and reads what it says at the end.
func result[T any](t *testing.T, r *running) T {
	t.Helper()
	last := r.stop()
	var v T
	if err := json.Unmarshal([]byte(last), &v); err != nil {
		t.Fatalf("%s: its last line is %q: %v %v %s", r.what, last, err, r.err, r.say.String())
	}
	return v
}

// streamResult is what traffic's stream says.
type streamResult struct {
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	GapMS    float64 `json:"gap_ms"`
	Error    string  `json:"error"`
}

// unbroken ends a stream and fails the test unless every byte came back.
func unbroken(t *testing.T, r *running) streamResult {
	t.Helper()
	res := result[streamResult](t, r)
	if res.Error != "" || res.Received < 10 {
		t.Errorf("%s: the connection did not last: %+v", r.what, res)
	}
	return res
}

// burst sends blocks of 1 KiB to an echo server over a new connection.
func (p *place) burst(t *testing.T, to string, blocks int) {
	t.Helper()
	out, err := p.do(p.traffic, "stream", to, "--burst", fmt.Sprint(blocks))
	var res streamResult
	if err == nil {
		err = json.Unmarshal([]byte(out), &res)
	}
	if err != nil || res.Error != "" || res.Received != blocks {
		t.Fatalf("%v sends %d KiB to %s: %+v %v", p, blocks, to, res, err)
	}
}
