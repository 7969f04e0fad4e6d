// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/kernel"
)

// A worker is a process of this test binary inside one network namespace (and one cgroup): it
// listens and dials as it is ordered, a JSON object a line on its standard input, an answer a line
// on its output.

type request struct {
	Op      string // listen, get, open, bind, send, talk, close, echo, exchange, bulk, probe, trace
	Net     string // tcp, udp
	Addr    string
	From    string // local address, for get and open
	Name    string // listen: what the server calls itself
	ID      int    // open, talk, close
	Timeout int    // ms
	Every   int    // ms, stream: between exchanges of a connection

	Shared   bool // open: other sockets may have the local address too
	Own      bool // get, open: the socket bears the mark of the agent's own
	Mark     int  // get, open: that of the socket
	Size     int  // exchange, probe: bytes of the datagram; bulk: bytes in all
	Reversed bool // echo, exchange: sent as IP fragments, the last one first
	DF       bool // probe: may not be fragmented

	Data []byte // send: what is sent; nil = a question
}

type answer struct {
	Reply string // "<server's name> <the client's address as the server saw it>"
	Peer  string // what getpeername says
	MSS   int    // largest segment of a TCP connection
	Again int    // segments that TCP sent again, or datagrams that the test did
	MTU   int    // probe: what the sender knows of the path
	Lost  int    // datagrams that were not answered, apart from the last
	Err   string
	Load  *loadReport

	Stream  *streamReport
	Arrived map[string]int // at doors, by who sent it

	Counters map[string]int // of the kernel, by name
}

type worker struct {
	t      *testing.T
	name   string
	family family // of its orders, in IPv4's addresses
	cmd    *exec.Cmd
	mu     sync.Mutex
	in     *json.Encoder
	out    *bufio.Scanner
	lost   *atomic.Int32 // datagrams of the whole LAN that were not answered
}

// mostLost is how many datagrams of a test may be lost. The kernel drops some of whoever sends at
// that moment when a CPU's queue of packets is full (net.core.netdev_max_backlog), be it by another
// test's; what Weir drops it drops again and again.
const mostLost = 2

// udpPatience is how long an answer to a datagram is waited for until the question is asked again.
const udpPatience = 10 * time.Second

// startWorker starts a worker in the namespace, as a member of the cgroup (a path, or "" for none).
func (l *lan) startWorker(name, netns, cgroup string) *worker {
	t := l.t
	t.Helper()
	enter := fmt.Sprintf("exec nsenter --net=/run/netns/%s %s", netns, os.Args[0])
	if cgroup != "" {
		enter = fmt.Sprintf("echo $$ > %s/cgroup.procs && %s", cgroup, enter)
	}
	cmd := exec.Command("sh", "-c", enter)
	cmd.Env = append(os.Environ(), "WEIR_TEST_WORKER=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting a worker in %s: %v", netns, err)
	}
	w := &worker{t: t, name: name, family: l.family, cmd: cmd, in: json.NewEncoder(stdin), out: bufio.NewScanner(stdout), lost: &l.lost}
	t.Cleanup(func() { stdin.Close(); cmd.Wait() })
	return w
}

func (w *worker) call(r request) answer {
	w.t.Helper()
	return w.callIn(w.family, r)
}

// callIn is call with the addresses of a family.
func (w *worker) callIn(fam family, r request) answer {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Timeout == 0 {
		r.Timeout = int(await.Patience.Milliseconds()) // what is expected to fail says a time of its own
	}
	r.Addr, r.From = fam.endpoint(r.Addr), fam.endpoint(r.From)
	if err := w.in.Encode(r); err != nil {
		w.t.Fatalf("%s: %v", w.name, err)
	}
	if !w.out.Scan() {
		w.t.Fatalf("%s: the worker is gone: %v", w.name, w.out.Err())
	}
	var a answer
	if err := json.Unmarshal(w.out.Bytes(), &a); err != nil {
		w.t.Fatalf("%s: %v", w.name, err)
	}
	w.lost.Add(int32(a.Lost))
	if fam == ipv6 {
		a.Reply, a.Peer = four(a.Reply), four(a.Peer)
	}
	return a
}

// listen starts a server that answers each message with its name and the client's address.
func (w *worker) listen(network, addr string) {
	w.t.Helper()
	if a := w.call(request{Op: "listen", Net: network, Addr: addr, Name: w.name}); a.Err != "" {
		w.t.Fatalf("%s: listen %s %s: %s", w.name, network, addr, a.Err)
	}
}

// get makes a connection, asks once, and closes.
func (w *worker) get(network, addr string, timeout ...int) answer {
	w.t.Helper()
	r := request{Op: "get", Net: network, Addr: addr}
	if len(timeout) > 0 {
		r.Timeout = timeout[0]
	}
	return w.call(r)
}

// reaches fails the test unless server answers at addr; it returns the source address that the
// server saw.
func (w *worker) reaches(server, network, addr string) string {
	w.t.Helper()
	a := w.get(network, addr)
	name, from, _ := strings.Cut(a.Reply, " ")
	if a.Err != "" || (server != "" && name != server) {
		w.t.Errorf("%s -> %s %s: got %q from %q (%s), want an answer of %q", w.name, network, addr, name, from, a.Err, server)
	}
	host, _, _ := net.SplitHostPort(from)
	return host
}

// refused fails the test when anybody answers.
func (w *worker) refused(network, addr string) {
	w.t.Helper()
	if a := w.get(network, addr, 400); a.Err == "" {
		w.t.Errorf("%s -> %s %s: got %q, want no answer", w.name, network, addr, a.Reply)
	}
}

func workerMain() {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	conns := map[int]net.Conn{}
	for in.Scan() {
		var r request
		var a answer
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			a.Err = err.Error()
		} else {
			a = serve(r, conns)
		}
		out.Encode(a)
	}
}

func serve(r request, conns map[int]net.Conn) answer {
	timeout := time.Duration(r.Timeout) * time.Millisecond
	switch r.Op {
	case "listen":
		return fromErr(listen(r))
	case "flood":
		return flood(r)
	case "hoard":
		return hoard(r)
	case "hold", "drain", "lookups":
		return takePorts(r)
	case "load":
		return startLoad(r, timeout)
	case "unload":
		return stopLoad()
	case "lines":
		return fromErr(serveLines(r))
	case "stream", "note stream", "goes on", "stream window", "end stream":
		return serveStream(r, timeout)
	case "door":
		return fromErr(openDoor(r))
	case "knock":
		return knock(r)
	case "arrivals":
		return arrivals()
	case "counters":
		return readCounters()
	case "echo":
		return fromErr(echo(r))
	case "count datagrams":
		return fromErr(countDatagrams(r))
	case "received":
		return receivedDatagrams()
	case "pace":
		return pace(r)
	case "name server":
		return fromErr(nameServer(r))
	case "firsts":
		return firsts(r)
	case "ask many":
		return fromErr(askMany(r))
	case "dns":
		return fromErr(dns(r))
	case "resolve":
		return resolve(r)
	case "exchange":
		return exchange(r, timeout)
	case "get":
		c, err := dial(r, timeout)
		if err != nil {
			return fromErr(err)
		}
		defer c.Close()
		return talk(c, timeout)
	case "open":
		c, err := dial(r, timeout)
		if err != nil {
			return fromErr(err)
		}
		conns[r.ID] = c
		return talk(c, timeout)
	case "bind": // a UDP socket that is not connected
		pc, err := net.ListenPacket("udp", r.Addr)
		if err != nil {
			return fromErr(err)
		}
		conns[r.ID] = pc.(*net.UDPConn)
		return answer{}
	case "send":
		return send(conns[r.ID].(*net.UDPConn), r, timeout)
	case "talk":
		return talk(conns[r.ID], timeout)
	case "sink":
		return fromErr(sink(r))
	case "pour":
		return pour(r, timeout)
	case "bulk":
		return fromErr(bulk(r, timeout))
	case "probe":
		return probe(r, timeout)
	case "trace":
		return trace(r, timeout)
	case "free":
		return freeRoutes(r)
	case "close":
		return fromErr(conns[r.ID].Close())
	}
	return answer{Err: "unknown op " + r.Op}
}

func fromErr(err error) answer {
	if err != nil {
		return answer{Err: err.Error()}
	}
	return answer{}
}

// noKeepAlive has a connection sent no probes: in some tests nothing may come through, on a slow
// machine for longer than probes without an answer are borne.
const noKeepAlive = -1

func dial(r request, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout, KeepAlive: noKeepAlive}
	if r.Own {
		d.Control = kernel.MarkOwn
	}
	if r.Mark != 0 {
		d.Control = func(_, _ string, raw syscall.RawConn) error {
			var set error
			err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, r.Mark) })
			return errors.Join(err, set)
		}
	}
	if r.Shared {
		d.Control = func(_, _ string, raw syscall.RawConn) error {
			var errs [2]error
			err := raw.Control(func(fd uintptr) {
				errs[0] = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
				errs[1] = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			})
			return errors.Join(err, errs[0], errs[1])
		}
	}
	if r.From != "" {
		if r.Net == "tcp" {
			a, err := net.ResolveTCPAddr("tcp", r.From)
			if err != nil {
				return nil, err
			}
			d.LocalAddr = a
		} else {
			a, err := net.ResolveUDPAddr("udp", r.From)
			if err != nil {
				return nil, err
			}
			d.LocalAddr = a
		}
	}
	return d.Dial(r.Net, r.Addr)
}

// asked asks, and asks again when a datagram or its answer was lost, until the time is over.
func asked(c net.Conn, timeout time.Duration, ask func() error, read func() error) (lost int, err error) {
	_, datagrams := c.(*net.UDPConn)
	for end := time.Now().Add(timeout); ; lost++ {
		until := end
		if soon := time.Now().Add(udpPatience); datagrams && soon.Before(end) {
			until = soon
		}
		c.SetDeadline(until)
		if err = ask(); err == nil {
			err = read()
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || until.Equal(end) {
			return lost, err
		}
	}
}

func talk(c net.Conn, timeout time.Duration) answer {
	var n int
	buf := make([]byte, 256)
	lost, err := asked(c, timeout, func() error { _, err := c.Write([]byte("who are you?\n")); return err },
		func() (err error) { n, err = c.Read(buf); return err })
	if err != nil {
		return answer{Err: err.Error(), Lost: lost}
	}
	a := answer{Lost: lost, Reply: strings.TrimSpace(string(buf[:n])), Peer: c.RemoteAddr().String()}
	if tc, ok := c.(*net.TCPConn); ok {
		raw, err := tc.SyscallConn()
		if err != nil {
			return fromErr(err)
		}
		var info *unix.TCPInfo
		raw.Control(func(fd uintptr) {
			var errs [2]error
			a.MSS, errs[0] = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
			info, errs[1] = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			err = errors.Join(errs[0], errs[1])
		})
		if err != nil {
			return fromErr(err)
		}
		a.Again = int(info.Total_retrans)
	}
	return a
}

// send asks once from a socket that is not connected; Peer is whom the answer came from.
func send(c *net.UDPConn, r request, timeout time.Duration) answer {
	to, err := net.ResolveUDPAddr("udp", r.Addr)
	if err != nil {
		return fromErr(err)
	}
	data := []byte("who are you?\n")
	if r.Data != nil {
		data = r.Data
	}
	var n int
	var from net.Addr
	buf := make([]byte, 256)
	lost, err := asked(c, timeout, func() error { _, err := c.WriteTo(data, to); return err },
		func() (err error) { n, from, err = c.ReadFrom(buf); return err })
	if err != nil {
		return answer{Err: err.Error(), Lost: lost}
	}
	return answer{Reply: strings.TrimSpace(string(buf[:n])), Peer: from.String(), Lost: lost}
}

// asker sent a datagram; what is written to it is an answer.
type asker struct {
	server *net.UDPConn
	netip.AddrPort
	at time.Time // when the kernel had it, where the socket asks for stamps
}

func (a asker) Write(b []byte) (int, error) { return a.server.WriteToUDPAddrPort(b, a.AddrPort) }

// String is the sender's address; a server of both families sees those of IPv4 as IPv6 has them.
func (a asker) String() string { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String() }

// serveDatagrams listens at a UDP address, and hands each datagram to a function; prepare, when not
// nil, has the socket before.
func serveDatagrams(addr string, prepare func(*net.UDPConn) error, each func(said []byte, from asker)) error {
	pc, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	c := pc.(*net.UDPConn)
	if prepare != nil {
		if err := prepare(c); err != nil {
			return err
		}
	}
	go func() {
		buf, oob := make([]byte, 4096), make([]byte, 64)
		for {
			n, oobn, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
			if err != nil {
				return
			}
			each(buf[:n], asker{c, from, stampOf(oob[:oobn])})
		}
	}()
	return nil
}

func listen(r request) error {
	if r.Net == "udp" {
		return serveDatagrams(r.Addr, nil, func(_ []byte, from asker) {
			fmt.Fprintf(from, "%s %s\n", r.Name, from)
		})
	}
	return serveConns(r.Addr, func(c net.Conn) {
		for in := bufio.NewScanner(c); in.Scan(); {
			more := "" // what is long gets a long answer
			if len(in.Bytes()) > 100 {
				more = in.Text()
			}
			fmt.Fprintf(c, "%s %s%s\n", r.Name, c.RemoteAddr(), more)
		}
	})
}

// serveConns serves each connection to a TCP port on its own, and closes it then.
func serveConns(addr string, each func(net.Conn)) error {
	l, err := (&net.ListenConfig{KeepAlive: noKeepAlive}).Listen(context.Background(), "tcp", addr)
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
				each(c)
			}()
		}
	}()
	return nil
}

// bulk sends lines of 1,000 bytes, Size bytes in all, and reads an answer to each, which is as
// long.
func bulk(r request, timeout time.Duration) error {
	c, err := dial(r, timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	line := append(bytes.Repeat([]byte("x"), 999), '\n')
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(bytes.Repeat(line, r.Size/len(line)))
		sent <- err
	}()
	in := bufio.NewReader(c)
	for i := range r.Size / len(line) {
		got, err := in.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("after %d of %d answers: %w", i, r.Size/len(line), err)
		}
		if !bytes.HasSuffix(got, line[1:]) {
			return fmt.Errorf("answer %d is not what was sent: %.40q…", i, got)
		}
	}
	return <-sent
}

// probe sends datagrams of Size bytes until one is answered, or the kernel refuses to send one of
// that size.
func probe(r request, timeout time.Duration) answer {
	c, err := dial(r, timeout)
	if err != nil {
		return fromErr(err)
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return fromErr(err)
	}
	level, discovery, known := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU
	if c.RemoteAddr().(*net.UDPAddr).IP.To4() == nil {
		level, discovery, known = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU
	}
	discover := unix.IP_PMTUDISC_DONT // the numbers are the same for IPv6
	if r.DF {
		discover = unix.IP_PMTUDISC_DO
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, discovery, discover) })
	if err != nil {
		return fromErr(err)
	}
	var a answer
	buf := make([]byte, 4096)
	for range 4 {
		c.SetDeadline(time.Now().Add(timeout))
		if _, err = c.Write(make([]byte, r.Size)); err == nil {
			var n int
			if n, err = c.Read(buf); err == nil {
				a.Reply = strings.TrimSpace(string(buf[:n]))
				break
			}
		}
	}
	a.Err = fromErr(err).Err
	raw.Control(func(fd uintptr) { a.MTU, err = unix.GetsockoptInt(int(fd), level, known) })
	if err != nil {
		return fromErr(err)
	}
	return a
}
