// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"

	"golang.org/x/sys/unix"
)

const testToken = "a-token-of-the-test-0123456789"

// serve starts a server at a loopback address and returns where it is.
func serve(t *testing.T, at string) Spec {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &Server{At: netip.MustParseAddr(at), Token: testToken, Name: "here"}
	up, down := make(chan Listening, 1), make(chan error, 1)
	go func() { down <- s.Run(ctx, func(l Listening) { up <- l }) }()
	select {
	case l := <-up:
		t.Cleanup(func() {
			cancel()
			if err := <-down; err != nil {
				t.Errorf("the server ended: %v", err)
			}
		})
		return Spec{To: l.To, UDP: l.UDP, Patience: await.Patience}
	case err := <-down:
		cancel()
		t.Fatal(err)
	}
	return Spec{}
}

func TestMeasure(t *testing.T) {
	for _, at := range []string{"127.0.0.1", "::1"} {
		t.Run(at, func(t *testing.T) {
			to := serve(t, at)
			for _, c := range []struct {
				spec  Spec
				check func(Result) bool
			}{
				{Spec{Test: Ping}, func(r Result) bool { return r.Operations == 1 }},
				{Spec{Test: Idle, Duration: 20 * time.Millisecond}, func(r Result) bool { return r.Client.CPUs > 0 && r.Server.MemUsed > 0 && r.OneMachine }},
				{Spec{Test: Stream, Duration: 50 * time.Millisecond}, func(r Result) bool { return r.Bytes > 0 && r.MSS > 0 && r.Congestion != "" }},
				{Spec{Test: Stream, Duration: 50 * time.Millisecond, WarmUp: 10 * time.Millisecond, Threads: 4}, func(r Result) bool { return r.Bytes > 0 }},
				{Spec{Test: Datagrams, Duration: 50 * time.Millisecond}, func(r Result) bool {
					return r.Operations > 0 && r.Sent >= r.Operations && r.Bytes == r.Operations*int64(r.Size)
				}},
				{Spec{Test: Datagrams, Duration: 50 * time.Millisecond, Size: 64, Threads: 2, WarmUp: time.Millisecond}, func(r Result) bool { return r.Size == 64 && r.Operations > 0 }},
				{Spec{Test: RoundTrip, Duration: 20 * time.Millisecond, WarmUp: time.Millisecond}, func(r Result) bool { return r.Latency.Count == r.Operations && r.Latency.P50 > 0 }},
				{Spec{Test: RoundTrip, Count: 100, Size: 100_000}, func(r Result) bool { return r.Operations == 100 }},
				{Spec{Test: UDPTrip, Count: 100}, func(r Result) bool { return r.Operations == 100 && r.Lost == 0 }},
				{Spec{Test: Connection, Duration: 20 * time.Millisecond}, func(r Result) bool { return r.Latency.P999 >= r.Latency.P50 }},
				{Spec{Test: HTTP, Count: 50, Body: 100_000, Threads: 7}, func(r Result) bool { return r.Operations == 50 }},
				{Spec{Test: Rate, Duration: 20 * time.Millisecond, Threads: 4}, func(r Result) bool { return r.Operations > 0 }},
				{Spec{Test: Apache, Count: 300, Threads: 10, Body: 64}, func(r Result) bool { return r.Operations == 300 && r.Latency.Count == 300 }},
			} {
				s := c.spec
				s.To, s.UDP, s.Patience = to.To, to.UDP, to.Patience
				r, err := (&Client{Token: testToken}).Measure(t.Context(), s)
				if err != nil || !c.check(r) {
					t.Errorf("%+v: %+v, %v", c.spec, r, err)
				}
			}
		})
	}
}

// A fixed rate is not exceeded, whatever the machine's speed; that it is reached depends on the
// machine and is reported.
func TestPace(t *testing.T) {
	to := serve(t, "127.0.0.1")
	to.Test, to.Duration, to.Size, to.Rate = Datagrams, 300*time.Millisecond, 1000, 8e6 // 1,000 datagrams a second
	r, err := (&Client{Token: testToken}).Measure(t.Context(), to)
	if most := int64(r.Elapsed*1000) + 30; err != nil || r.Sent == 0 || r.Sent > most {
		t.Errorf("%d datagrams sent in %v s, want up to %d: %v", r.Sent, r.Elapsed, most, err)
	}
}

func TestStrangersGetNothing(t *testing.T) {
	to := serve(t, "127.0.0.1")
	for _, test := range []Test{Ping, Stream, Datagrams, RoundTrip, UDPTrip, Connection} {
		s := to
		s.Test, s.Duration = test, 10*time.Millisecond
		if _, err := (&Client{Token: "another-token-0123456789"}).Measure(t.Context(), s); err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("%s with a wrong token: %v", test, err)
		}
	}
	// Datagrams of no session are not answered.
	c, err := net.Dial("udp", to.UDP.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, size := range []int{0, 1, 15, 16, 64, 1400} {
		if _, err := c.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	// A round trip afterwards says that they were seen.
	s := to
	s.Test, s.Count = UDPTrip, 1
	if _, err := (&Client{Token: testToken}).Measure(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a stranger's datagram was answered by %d bytes, %v", n, err)
	}
}

func TestBadRequests(t *testing.T) {
	to := serve(t, "127.0.0.1")
	auth := "Authorization: Bearer " + testToken + "\r\n"
	for request, want := range map[string]string{
		"GET /stat HTTP/1.1\r\n\r\n":                                        "401",
		"nonsense\r\n\r\n":                                                  "400",
		"GET /nothing HTTP/1.1\r\n" + auth + "\r\n":                         "404",
		"GET /?bytes=-1 HTTP/1.1\r\n" + auth + "\r\n":                       "400",
		"GET /?bytes=99999999999 HTTP/1.1\r\n" + auth + "\r\n":              "400",
		"POST /rr?bytes=0 HTTP/1.1\r\n" + auth + "\r\n":                     "400",
		"POST /sink HTTP/1.1\r\nContent-Length: 5\r\n" + auth + "\r\nhello": "400",
		"GET /who HTTP/1.1\r\n" + auth + "\r\n":                             "200",
		"GET /" + strings.Repeat("x", 3*maxHead):                            "",
	} {
		c, err := net.Dial("tcp", to.To.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1000)
		n, err := c.Read(buf)
		got := string(buf[:n])
		if want == "" && n > 0 || want != "" && !strings.HasPrefix(got, "HTTP/1.1 "+want) {
			t.Errorf("%.60q: %q, %v; want %s", request, got, err, want)
		}
		c.Close()
	}
}

func TestServerRefuses(t *testing.T) {
	for _, s := range []*Server{
		{At: netip.MustParseAddr("127.0.0.1"), Token: "short"},
		{At: netip.MustParseAddr("0.0.0.0"), Token: testToken},
		{At: netip.MustParseAddr("::"), Token: testToken},
		{Token: testToken},
	} {
		if err := s.Run(t.Context(), func(Listening) { t.Error("listens") }); err == nil {
			t.Errorf("%+v was taken", s)
		}
	}
}

func TestClientStops(t *testing.T) {
	to := serve(t, "127.0.0.1")
	for _, test := range []Test{Idle, Stream, Datagrams, RoundTrip, Rate} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s := to
		s.Test, s.Duration, s.Threads = test, maxDuration, 2
		if _, err := (&Client{Token: testToken}).Measure(ctx, s); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", test, err)
		}
	}
}

func TestSpecCheck(t *testing.T) {
	ok := Spec{Test: Stream, To: netip.MustParseAddrPort("127.0.0.1:1")}
	if err := ok.Check(); err != nil || ok.Threads != 1 || ok.Direct != ok.To {
		t.Errorf("%+v: %v", ok, err)
	}
	for i, change := range []func(*Spec){
		func(s *Spec) { s.Test = "x" }, func(s *Spec) { s.To = netip.AddrPort{} }, func(s *Spec) { s.Duration = 2 * maxDuration },
		func(s *Spec) { s.Threads = maxThreads + 1 }, func(s *Spec) { s.Count = -1 }, func(s *Spec) { s.Size = maxMessage + 1 },
		func(s *Spec) { s.Test = Datagrams }, func(s *Spec) { s.Test, s.UDP, s.Size = UDPTrip, s.To, 10 }, func(s *Spec) { s.Rate = -1 },
		func(s *Spec) { s.Test = HTTP }, func(s *Spec) { s.Body = -1 },
	} {
		s := ok
		if change(&s); s.Check() == nil {
			t.Errorf("change %d was taken: %+v", i, s)
		}
	}
}

func TestReading(t *testing.T) {
	var before, after Reading
	const stat = "cpu  100 20 30 4000 500 6 7 80 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\ncpu1 1 1 1 1 1 1 1 0 0 0\nintr 5\n"
	if err := before.cpu(strings.NewReader(stat)); err != nil {
		t.Fatal(err)
	}
	if err := after.cpu(strings.NewReader(strings.NewReplacer("cpu  100", "cpu  300", "4000", "5000").Replace(stat))); err != nil {
		t.Fatal(err)
	}
	if err := after.memory(strings.NewReader("MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\n")); err != nil {
		t.Fatal(err)
	}
	before.At, after.At = 5, 6
	got := after.Since(before)
	if want := (Use{Elapsed: 1, CPUs: 2, User: 2, MemUsed: 3}); got != want || got.VCPUs() != 2 || before.System != 0.43 {
		t.Errorf("%+v, want %+v; system %v", got, want, before.System)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2\n", "cpu  1 x 3 4 5 6 7 8\n"} {
		if err := before.cpu(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if err := before.memory(strings.NewReader("x")); err == nil {
		t.Error("no memory was taken")
	}
}

func TestDaemons(t *testing.T) {
	dir := t.TempDir()
	for pid, name := range map[int]string{1: "init", 20: "kube-proxy", 30: "weir-agent", 31: "weir-agent"} {
		at := filepath.Join(dir, fmt.Sprint(pid))
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"comm": name + "\n", "status": "Name:\tx\nVmRSS:\t  2048 kB\n",
			"stat": fmt.Sprintf("%d (a) b) S 1 1 1 0 -1 4 1 2 3 4 150 50 0 0 20 0 1 0 5\n", pid)} {
			if err := os.WriteFile(filepath.Join(at, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := ReadDaemons(dir)
	want := []Daemon{{"kube-proxy", 2, 2}, {"weir-agent", 4, 4}}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	n, err := ReadDescription(t.Context())
	if err != nil || n.Kernel == "" || n.CPUs == 0 || n.MemoryMiB == 0 {
		t.Errorf("this node is %+v, %v", n, err)
	}
}

func TestCongestionControlThatIsNotThere(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := socket(fd)
	defer s.close()
	before, _ := s.facts()
	if err := s.stream(congestion{name: "none-such"}); err != nil {
		t.Errorf("only if allowed: %v", err)
	}
	if after, _ := s.facts(); after != before {
		t.Errorf("%s became %s", before, after)
	}
	if err := s.stream(congestion{name: "none-such", must: true}); err == nil {
		t.Error("one that is asked for and not there is no error")
	}
	if err := s.stream(congestion{name: "reno", must: true}); err != nil {
		t.Error(err)
	}
	if after, _ := s.facts(); after != "reno" {
		t.Errorf("reno was set, %s is in use", after)
	}
}
