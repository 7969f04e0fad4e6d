package netns

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
)

// A stream is some connections that exchange lines with their sums as long as it goes on. A server's answer begins with its name and
// whom it saw: that may not change while a connection is open.

// streamReport is what became of a stream so far.
type streamReport struct {
	Conns, Exchanges int
	Least            int // exchanges of the connection that made the fewest
	Lost             int // datagrams that were sent again
	Longest          time.Duration
	Errs             []string
}

// stream is one in a worker.
type stream struct {
	mu     sync.Mutex
	made   []int // exchanges, by connection
	report streamReport
	ended  chan struct{}
	done   sync.WaitGroup
}

var streams = map[int]*stream{}

// serveLines answers each line, or datagram, by the server's name, whom it came from, and the line.
func serveLines(r request) error {
	if r.Net == "udp" {
		pc, err := net.ListenPacket("udp", r.Addr)
		if err != nil {
			return err
		}
		go func() {
			buf := make([]byte, 4096)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				fmt.Fprintf(writerTo{pc, from}, "%s %s %s", r.Name, from, buf[:n])
			}
		}()
		return nil
	}
	l, err := net.Listen("tcp", r.Addr)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					fmt.Fprintf(c, "%s %s %s\n", r.Name, c.RemoteAddr(), in.Text())
				}
			}()
		}
	}()
	return nil
}

// startStream opens r.Size connections.
func startStream(r request, timeout time.Duration) answer {
	s := &stream{ended: make(chan struct{}), made: make([]int, r.Size)}
	for i := range r.Size {
		c, err := dial(r, timeout)
		if err != nil {
			return fromErr(err)
		}
		s.done.Go(func() {
			defer c.Close()
			if err := s.talk(i, c); err != nil {
				s.mu.Lock()
				s.report.Errs = append(s.report.Errs, fmt.Sprintf("connection %d, %s: %v", i, c.LocalAddr(), err))
				s.mu.Unlock()
			}
		})
	}
	streams[r.ID] = s
	return answer{}
}

// talk exchanges lines until the stream ends.
func (s *stream) talk(i int, c net.Conn) error {
	_, datagrams := c.(*net.UDPConn)
	in := bufio.NewReader(c)
	server := ""
	for n := 0; ; n++ {
		select {
		case <-s.ended:
			return nil
		case <-time.After(5 * time.Millisecond):
		}
		text := fmt.Sprintf("%d %d %s", i, n, strings.Repeat(string(rune('a'+n%26)), 1+n*37%900))
		line := fmt.Sprintf("%s %08x\n", text, crc32.ChecksumIEEE([]byte(text)))
		began := time.Now()
		got, lost, err := exchangeLine(c, in, line, datagrams)
		if err != nil {
			return fmt.Errorf("after %d exchanges: %w", n, err)
		}
		who, ok := strings.CutSuffix(got, line)
		if server == "" {
			server = who
		}
		if !ok || who != server {
			return fmt.Errorf("exchange %d: %.60q came back from %q for %.60q; the server was %q", n, got, who, line, server)
		}
		s.mu.Lock()
		s.made[i]++
		s.report.Lost += lost
		s.report.Longest = max(s.report.Longest, time.Since(began))
		s.mu.Unlock()
	}
}

// exchangeLine sends a line, a datagram until it is answered, and returns the answer to it.
func exchangeLine(c net.Conn, in *bufio.Reader, line string, datagrams bool) (got string, lost int, err error) {
	if !datagrams {
		c.SetDeadline(time.Now().Add(await.Patience))
		if _, err := c.Write([]byte(line)); err != nil {
			return "", 0, err
		}
		got, err = in.ReadString('\n')
		return got, 0, err
	}
	buf := make([]byte, 4096)
	for end := time.Now().Add(await.Patience); time.Now().Before(end); lost++ {
		if _, err := c.Write([]byte(line)); err != nil {
			return "", lost, err
		}
		c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		for {
			n, err := c.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return "", lost, err
			}
			if got = string(buf[:n]); strings.HasSuffix(got, line) { // else the late answer to one that was sent again
				return got, lost, nil
			}
		}
	}
	return "", lost, errors.New("no answer, whatever was sent")
}

// lookAtStream waits until each connection has made r.Size exchanges more than now, and tells.
func lookAtStream(r request) answer {
	s := streams[r.ID]
	if s == nil {
		return answer{Err: "there is no such stream"}
	}
	s.mu.Lock()
	before := append([]int(nil), s.made...)
	s.mu.Unlock()
	for end := time.Now().Add(await.Patience); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		more := true
		for i, n := range s.made {
			more = more && n >= before[i]+r.Size
		}
		report := s.report
		s.mu.Unlock()
		if more || len(report.Errs) > 0 || time.Now().After(end) {
			report.Conns, report.Least = len(s.made), s.made[0]
			for _, n := range s.made {
				report.Exchanges += n
				report.Least = min(report.Least, n)
			}
			a := answer{Stream: &report}
			if !more {
				a.Err = strings.Join(append([]string{"a connection does not go on"}, report.Errs...), "; ")
			}
			return a
		}
	}
}

func endStream(r request) answer {
	s := streams[r.ID]
	if s == nil {
		return answer{Err: "there is no such stream"}
	}
	close(s.ended)
	s.done.Wait()
	delete(streams, r.ID)
	return answer{Err: strings.Join(s.report.Errs, "; ")}
}

// running is a stream as a test sees it.
type running struct {
	*worker
	id   int
	what string
}

// lines makes the worker serve lines.
func (w *worker) lines(addr string) {
	w.t.Helper()
	for _, nw := range networks {
		if a := w.call(request{Op: "lines", Net: nw, Addr: addr, Name: w.name}); a.Err != "" {
			w.t.Fatalf("%s: serving lines at %s %s: %s", w.name, nw, addr, a.Err)
		}
	}
}

// stream begins one of some connections.
func (w *worker) stream(t *testing.T, id, conns int, network, addr string) *running {
	t.Helper()
	s := &running{w, id, fmt.Sprintf("%s -> %s %s", w.name, network, addr)}
	if a := w.call(request{Op: "stream", ID: id, Net: network, Addr: addr, Size: conns}); a.Err != "" {
		t.Fatalf("%s: %s", s.what, a.Err)
	}
	return s
}

// goesOn fails the test unless every connection of the stream makes some exchanges more.
func (s *running) goesOn(t *testing.T, when string) streamReport {
	t.Helper()
	a := s.call(request{Op: "goes on", ID: s.id, Size: 5})
	if a.Err != "" {
		t.Errorf("%s, %s: %s", s.what, when, a.Err)
	}
	if a.Stream == nil {
		return streamReport{}
	}
	return *a.Stream
}

func (s *running) end(t *testing.T) {
	t.Helper()
	if a := s.call(request{Op: "end stream", ID: s.id}); a.Err != "" {
		t.Errorf("%s: %s", s.what, a.Err)
	}
}
