// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
)

// A stream is some connections that exchange lines with their sums as long as it goes on. A
// server's answer begins with how long its process had the line, its name and whom it saw: the last
// two may not change while a connection is open.

// streamReport is what became of a stream so far.
type streamReport struct {
	Conns, Exchanges int
	Least            int // exchanges of the connection that made the fewest
	Lost             int // datagrams that were never answered; known when the stream has ended
	Again            int // segments that TCP sent again; so is this
	Slow             int // exchanges that were longer than slow on their way
	Late             int // others that took longer than that, because a process of the test read late
	Longest          time.Duration
	LongestAt        string   // when that exchange began, and where it was so long
	LostAt           []string // when datagrams were sent that were lost, the first few
	Errs             []string
}

// slow is what an exchange takes no longer than when nothing is lost on its path: TCP sends what
// was lost again after 0.2 s at the soonest.
const slow = 200 * time.Millisecond

// spoken is what a connection said, and what came back.
type spoken struct {
	began, wrote time.Time
	there        time.Time     // when the server's kernel had it
	held         time.Duration // by the server's process
	came         time.Time     // when the kernel had the answer
}

// add adds an exchange. What counts is how long it took: from when it was sent until the
// kernel had the answer, without what the server's process had it.
func (r *streamReport) add(e spoken) {
	r.Exchanges++
	on := e.came.Sub(e.began) - e.held
	switch {
	case on > slow:
		r.Slow++
	case time.Since(e.began) > slow:
		r.Late++
	}
	if on > r.Longest {
		r.Longest, r.LongestAt = on, fmt.Sprintf("%s: %v to write, %v there, %v back", e.began.Format(clock), e.wrote.Sub(e.began).Round(time.Millisecond),
			e.there.Sub(e.began).Round(time.Millisecond), e.came.Sub(e.there.Add(e.held)).Round(time.Millisecond))
	}
}

// clock is how reports print a moment, as drivers' logs do.
const clock = "15:04:05.000"

// mostListed bounds how many lost datagrams a report lists, and how many broken connections.
const mostListed = 20

// stream is one in a worker.
type stream struct {
	mu     sync.Mutex
	made   []int // exchanges, by connection
	noted  []int // the same, at "note stream"
	every  time.Duration
	report streamReport
	window streamReport // what ended since the last look: Exchanges, Slow, Longest, LongestAt
	ended  chan struct{}
	done   sync.WaitGroup
}

var streams = map[int]*stream{}

// serveLines answers each line, or datagram, by when its kernel had it and how long its process
// did, in microseconds, the server's name, whom it came from, and the line.
func serveLines(r request) error {
	if r.Net == "udp" {
		return serveDatagrams(r.Addr, func(c *net.UDPConn) error { return errors.Join(roomy(c), askStamps(c)) }, func(said []byte, from asker) {
			fmt.Fprintf(from, "%d %d %s %s %s", from.at.UnixMicro(), time.Since(from.at).Microseconds(), r.Name, from, said)
		})
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
			s, err := stamp(c)
			if err != nil {
				c.Close()
				continue
			}
			go func() {
				defer c.Close()
				for in := bufio.NewScanner(s); in.Scan(); {
					fmt.Fprintf(c, "%d %d %s %s %s\n", s.at.UnixMicro(), time.Since(s.at).Microseconds(), r.Name, c.RemoteAddr(), in.Text())
				}
			}()
		}
	}()
	return nil
}

// times takes what the server says of them from an answer.
func (e *spoken) times(got string) (rest string, err error) {
	words := strings.SplitN(got, " ", 3)
	if len(words) < 3 {
		return "", fmt.Errorf("%.60q came back", got)
	}
	at, err := strconv.ParseInt(words[0], 10, 64)
	us, err2 := strconv.ParseInt(words[1], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return "", fmt.Errorf("%.60q came back: %w", got, err)
	}
	e.there, e.held = time.UnixMicro(at), time.Duration(us)*time.Microsecond
	return words[2], nil
}

// roomy gives a socket room for what comes while its process waits for a CPU: what does not fit
// would count as lost.
func roomy(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if ctrlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) }); ctrlErr != nil {
		return ctrlErr
	}
	return err
}

// serveStream does what is asked of a stream.
func serveStream(r request, timeout time.Duration) answer {
	if r.Op == "stream" {
		return startStream(r, timeout)
	}
	s := streams[r.ID]
	if s == nil {
		return answer{Err: "there is no such stream"}
	}
	switch r.Op {
	case "note stream":
		s.mu.Lock()
		defer s.mu.Unlock()
		s.noted = slices.Clone(s.made)
		return answer{}
	case "goes on":
		return s.goesOn(r.Size)
	case "stream window":
		s.mu.Lock()
		defer s.mu.Unlock()
		out := s.window
		s.window = streamReport{}
		return answer{Stream: &out}
	}
	close(s.ended)
	s.done.Wait()
	delete(streams, r.ID)
	return answer{Err: strings.Join(s.report.Errs, "; "), Stream: &s.report}
}

// startStream opens r.Size connections, each of which begins an exchange every r.Every
// milliseconds; with r.From from that port on.
func startStream(r request, timeout time.Duration) answer {
	s := &stream{ended: make(chan struct{}), made: make([]int, r.Size), every: time.Duration(max(r.Every, 5)) * time.Millisecond}
	first, shares := netip.ParseAddrPort(r.From)
	for i := range r.Size {
		if shares == nil {
			r.From = netip.AddrPortFrom(first.Addr(), first.Port()+uint16(i)).String()
		}
		c, err := dial(r, timeout)
		if uc, ok := c.(*net.UDPConn); err == nil && ok {
			err = roomy(uc)
		}
		if err != nil {
			return fromErr(err)
		}
		at, err := stamp(c)
		if err != nil {
			return fromErr(err)
		}
		s.done.Go(func() {
			defer c.Close()
			run := s.talk
			if r.Net == "udp" {
				run = s.beat
			}
			if err := run(i, at); err != nil {
				s.mu.Lock()
				switch n := len(s.report.Errs); {
				case n < mostListed:
					said := fmt.Sprintf("%s: connection %d, %s: %v", time.Now().Format(clock), i, c.LocalAddr(), err)
					s.report.Errs = append(s.report.Errs, said)
				case n == mostListed:
					s.report.Errs = append(s.report.Errs, "and more")
				}
				s.mu.Unlock()
			}
		})
	}
	streams[r.ID] = s
	return answer{}
}

// lineOf is what connection i says in its exchange n.
func lineOf(i, n int) string {
	text := fmt.Sprintf("%d %d %s", i, n, strings.Repeat(string(rune('a'+n%26)), 1+n*37%900))
	return fmt.Sprintf("%s %08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

// pause waits until the next exchange; it reports whether there is one.
func (s *stream) pause() bool {
	select {
	case <-s.ended:
		return false
	case <-time.After(s.every):
		return true
	}
}

// first is when a connection begins, so that not all say something at once.
func (s *stream) first(i int) time.Duration {
	return s.every * time.Duration(i) / time.Duration(len(s.made))
}

// answered notes an exchange.
func (s *stream) answered(i int, e spoken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made[i]++
	s.report.add(e)
	s.window.add(e)
}

// talk exchanges lines over TCP until the stream ends.
func (s *stream) talk(i int, c *stamped) error {
	in := bufio.NewReader(c)
	server := ""
	time.Sleep(s.first(i))
	for n := 0; s.pause(); n++ {
		line := lineOf(i, n)
		c.SetDeadline(time.Now().Add(await.Patience))
		e := spoken{began: time.Now()}
		if _, err := c.Write([]byte(line)); err != nil {
			return fmt.Errorf("after %d exchanges: %w", n, err)
		}
		e.wrote = time.Now()
		got, err := in.ReadString('\n')
		if err != nil {
			return fmt.Errorf("after %d exchanges: %w", n, err)
		}
		e.came = c.at
		rest, err := e.times(got)
		if err != nil {
			return fmt.Errorf("exchange %d: %w", n, err)
		}
		who, ok := strings.CutSuffix(rest, line)
		if server == "" {
			server = who
		}
		if !ok || who != server {
			return fmt.Errorf("exchange %d: %.60q came back from %q for %.60q; the server was %q", n, got, who, line, server)
		}
		s.answered(i, e)
	}
	return s.noteRepeats(c.raw)
}

// noteRepeats counts the segments that TCP sent again.
func (s *stream) noteRepeats(raw syscall.RawConn) error {
	var info *unix.TCPInfo
	var err error
	if ctrlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); ctrlErr != nil || err != nil {
		return errors.Join(ctrlErr, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Again += int(info.Total_retrans)
	return nil
}

// lastAnswers is how long no answer has to come until those that are missing are taken for lost.
// Late ones are not: machines are busy.
const lastAnswers = 5 * time.Second

// beat sends datagrams, whatever becomes of those before, until the stream ends, and counts those
// that were never answered. None is sent again.
func (s *stream) beat(i int, c *stamped) error {
	var mu sync.Mutex
	sent, over := map[string]*spoken{}, time.Time{} // what is not answered yet; when nothing was sent any more
	came := make(chan error, 1)
	go func() { came <- s.hear(i, c, &mu, sent, &over) }()
	time.Sleep(s.first(i))
	for n := 0; s.pause(); n++ {
		select {
		case err := <-came:
			return fmt.Errorf("after %d datagrams: %w", n, err)
		default:
		}
		line := lineOf(i, n)
		mu.Lock()
		e := &spoken{began: time.Now()}
		sent[line] = e
		mu.Unlock()
		if _, err := c.Write([]byte(line)); err != nil {
			return fmt.Errorf("sending datagram %d: %w", n, err)
		}
		mu.Lock()
		e.wrote = time.Now()
		mu.Unlock()
	}
	mu.Lock()
	over = time.Now()
	c.SetReadDeadline(over)
	mu.Unlock()
	err := <-came
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Lost += len(sent)
	for _, e := range sent {
		if len(s.report.LostAt) < mostListed {
			s.report.LostAt = append(s.report.LostAt, fmt.Sprintf("%s from %s", e.began.Format(clock), c.LocalAddr()))
		}
	}
	return err
}

// hear reads answers until none is missing, or none comes any more.
func (s *stream) hear(i int, c *stamped, mu *sync.Mutex, sent map[string]*spoken, over *time.Time) error {
	buf, server, last := make([]byte, 4096), "", time.Now()
	for {
		mu.Lock()
		if over.IsZero() { // nothing wakes it but an answer: there may be thousands
			c.SetReadDeadline(time.Time{})
		} else {
			c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		}
		mu.Unlock()
		n, err := c.Read(buf)
		mu.Lock()
		end := !over.IsZero() && (len(sent) == 0 || time.Since(*over) > lastAnswers && time.Since(last) > lastAnswers)
		mu.Unlock()
		switch {
		case end:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return fmt.Errorf("waiting for an answer: %w", err)
		}
		got := string(buf[:n])
		var said spoken
		rest, err := said.times(got)
		if err != nil {
			return err
		}
		words := strings.SplitN(rest, " ", 3) // the server's name, whom it saw, the line
		if len(words) < 3 {
			return fmt.Errorf("%.60q came back", got)
		}
		who, line := words[0]+" "+words[1], words[2]
		mu.Lock()
		asked, known := sent[line]
		delete(sent, line)
		if known {
			said.began, said.wrote, said.came = asked.began, asked.wrote, c.at
			if said.wrote.IsZero() { // the answer was faster than the return from writing
				said.wrote = said.came
			}
		}
		mu.Unlock()
		if server == "" {
			server = who
		}
		if !known || who != server {
			return fmt.Errorf("%.60q came back from %q; the server was %q", got, who, server)
		}
		last = time.Now()
		s.answered(i, said)
	}
}

// goesOn waits until each connection has made some exchanges more than were noted last, or than
// now, and reports.
func (s *stream) goesOn(some int) answer {
	s.mu.Lock()
	before := s.noted
	if s.noted = nil; before == nil {
		before = slices.Clone(s.made)
	}
	s.mu.Unlock()
	for end := time.Now().Add(await.Patience); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		more := true
		for i, n := range s.made {
			more = more && n >= before[i]+some
		}
		report := s.report
		s.mu.Unlock()
		if more || len(report.Errs) > 0 || time.Now().After(end) {
			report.Conns, report.Least = len(s.made), slices.Min(s.made)
			a := answer{Stream: &report}
			if !more {
				a.Err = strings.Join(append([]string{"a connection does not go on"}, report.Errs...), "; ")
			}
			return a
		}
	}
}

// running is a stream as a test sees it.
type running struct {
	*worker
	id   int
	what string
	more int // exchanges of each connection, until goesOn is content
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
func (w *worker) stream(t *testing.T, id, conns int, every time.Duration, network, addr string) *running {
	t.Helper()
	return w.streamFrom(t, id, conns, every, network, addr, "")
}

// streamFrom begins one whose connections have the source ports from that of an address on, which
// others may have, too.
func (w *worker) streamFrom(t *testing.T, id, conns int, every time.Duration, network, addr, from string) *running {
	t.Helper()
	s := &running{w, id, strings.TrimSpace(fmt.Sprintf("%s %s -> %s %s", w.name, from, network, addr)), max(1, min(5, int(time.Second/every)))}
	if a := w.call(request{Op: "stream", ID: id, Net: network, Addr: addr, From: from, Shared: from != "", Size: conns, Every: int(every.Milliseconds())}); a.Err != "" {
		t.Fatalf("%s: %s", s.what, a.Err)
	}
	return s
}

// allGoOn fails the test unless every connection of every stream makes some exchanges more, and
// returns the streams. Where a stream may break, the first that does is reported, and left out from
// then on.
func allGoOn(t *testing.T, all []*running, when string, mayBreak *int) (rest []*running) {
	t.Helper()
	for _, s := range all {
		if a := s.call(request{Op: "note stream", ID: s.id}); a.Err != "" {
			t.Errorf("%s, %s: %s", s.what, when, a.Err)
		}
	}
	for _, s := range all {
		switch a := s.call(request{Op: "goes on", ID: s.id, Size: s.more}); {
		case a.Err == "":
			rest = append(rest, s)
		case *mayBreak > 0:
			*mayBreak--
			t.Logf("BROKEN: %s, %s: %s", s.what, when, a.Err)
		default:
			t.Errorf("%s, %s: %s", s.what, when, a.Err)
		}
	}
	return rest
}

// end ends the stream and reports what became of it.
func (s *running) end(t *testing.T) streamReport {
	t.Helper()
	a := s.call(request{Op: "end stream", ID: s.id})
	if a.Err != "" || a.Stream == nil {
		t.Errorf("%s: %s", s.what, a.Err)
		return streamReport{}
	}
	return *a.Stream
}
