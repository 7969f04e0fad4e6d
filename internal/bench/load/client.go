// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Target is where a client goes and what it has for it.
type Target struct {
	To       netip.AddrPort
	From     Ports         // source ports, for this test alone
	CPU      int           // the client's; < 0 = any
	Patience time.Duration // of each blocking call
	Limit    time.Duration // of the whole run
}

// Ports is a range of ports, both ends included.
type Ports struct{ First, Last uint16 }

// ParsePorts reads "20000-29999".
func ParsePorts(s string) (Ports, error) {
	var p Ports
	if n, err := fmt.Sscanf(s, "%d-%d", &p.First, &p.Last); n != 2 || err != nil || p.First == 0 || p.First > p.Last {
		return p, fmt.Errorf("%q is not a range of ports such as 10000-29999", s)
	}
	return p, nil
}

func (p Ports) at(i int) uint16 { return p.First + uint16(i%(int(p.Last)-int(p.First)+1)) }

// errLimit says that the time was up before the count was reached.
var errLimit = errors.New("the time limit was reached")

// Requests makes count connections one after the other: connect, send a request, read the whole
// answer, close first. It returns the time of each in µs, from before connect to after close, and
// fails at the first that fails. Requests of the same process begin with different ports.
func Requests(t Target, count int) ([]float64, error) {
	if err := pin(t.CPU); err != nil {
		return nil, err
	}
	to, err := sockaddrOf(t.To)
	if err != nil {
		return nil, err
	}
	request := requestFor("/", t.To)
	buf := make([]byte, 65536)
	out := make([]float64, 0, count)
	began := time.Now()
	// Not always the same port first: the last run's are in TIME_WAIT.
	next := int(began.UnixMilli()) % (int(t.From.Last) - int(t.From.First) + 1)
	for len(out) < count {
		if time.Since(began) > t.Limit {
			return out, fmt.Errorf("%w after %d of %d connections", errLimit, len(out), count)
		}
		fd, err := clientSocket(t, t.From.at(next))
		next++
		if err == unix.EADDRINUSE {
			continue
		}
		if err != nil {
			return out, err
		}
		start := time.Now()
		if e := rawConnect(fd, &to); e == unix.EADDRNOTAVAIL {
			rawClose(fd) // this port is in TIME_WAIT towards there
			continue
		} else if e != 0 {
			rawClose(fd)
			return out, connectError(t, e)
		}
		_, err = exchange(fd, request, buf)
		rawClose(fd)
		if err != nil {
			return out, fmt.Errorf("connection %d to %v: %w", len(out)+1, t.To, err)
		}
		out = append(out, float64(time.Since(start).Nanoseconds())/1000)
	}
	return out, nil
}

func connectError(t Target, e error) error {
	if isTimeout(e) {
		return fmt.Errorf("connecting to %v: no answer within %v", t.To, t.Patience)
	}
	return fmt.Errorf("connecting to %v: %w", t.To, e)
}

func requestFor(path string, to netip.AddrPort) []byte {
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %v\r\nUser-Agent: weir-bench\r\nAccept: */*\r\n\r\n", path, to)
}

func clientSocket(t Target, port uint16) (int, error) {
	fd, e := rawSocket(unix.SOCK_STREAM)
	if e != 0 {
		return 0, fmt.Errorf("opening a socket: %w", e)
	}
	if err := errors.Join(tcpOptions(fd), timeouts(fd, t.Patience)); err != nil {
		rawClose(fd)
		return 0, err
	}
	from := sockaddr{family: unix.AF_INET, port: [2]byte{byte(port >> 8), byte(port)}}
	if e := rawBind(fd, &from); e != 0 {
		rawClose(fd)
		if e == unix.EADDRINUSE {
			return 0, e
		}
		return 0, fmt.Errorf("binding to port %d: %w", port, e)
	}
	return fd, nil
}

var (
	headEnd    = []byte("\r\n\r\n")
	lengthName = []byte("Content-Length: ")
	okStatus   = []byte("HTTP/1.1 200 ")
)

// exchange sends a request and reads the answer to its end, which Content-Length gives. It returns
// the body.
func exchange(fd int, request, buf []byte) ([]byte, error) {
	if err := writeAll(fd, request); err != nil {
		return nil, fmt.Errorf("sending the request: %w", err)
	}
	have := 0
	for {
		if have == len(buf) {
			return nil, fmt.Errorf("the answer is longer than %d bytes", len(buf))
		}
		n, e := rawRead(fd, buf[have:])
		if e != 0 {
			if isTimeout(e) {
				return nil, errors.New("the answer did not come in time")
			}
			return nil, fmt.Errorf("reading the answer: %w", e)
		}
		if n == 0 {
			return nil, fmt.Errorf("the connection ended after %d bytes of the answer", have)
		}
		have += n
		body, whole, err := parse(buf[:have])
		if err != nil || whole {
			return body, err
		}
	}
}

// parse reads a response with Content-Length; whole says that all of its body is there.
func parse(b []byte) (body []byte, whole bool, err error) {
	end := bytes.Index(b, headEnd)
	if end < 0 {
		return nil, false, nil
	}
	if !bytes.HasPrefix(b, okStatus) {
		line, _, _ := bytes.Cut(b, []byte("\r\n"))
		return nil, false, fmt.Errorf("the server answers %q", line)
	}
	at := bytes.Index(b[:end], lengthName)
	if at < 0 {
		return nil, false, errors.New("the answer has no Content-Length")
	}
	text, _, _ := bytes.Cut(b[at+len(lengthName):end+2], []byte("\r\n"))
	length, err := strconv.Atoi(string(text))
	if err != nil || length < 0 {
		return nil, false, fmt.Errorf("the answer's Content-Length is %q", text)
	}
	body = b[end+len(headEnd):]
	return body, len(body) >= length, nil
}

// Ask makes one request and returns the answer's body. Its own port is the kernel's choice.
func Ask(t Target, path string) (string, error) {
	if err := pin(t.CPU); err != nil {
		return "", err
	}
	to, err := sockaddrOf(t.To)
	if err != nil {
		return "", err
	}
	fd, err := clientSocket(t, 0)
	if err != nil {
		return "", err
	}
	defer rawClose(fd)
	if e := rawConnect(fd, &to); e != 0 {
		return "", connectError(t, e)
	}
	body, err := exchange(fd, requestFor(path, t.To), make([]byte, 65536))
	return string(body), err
}

// ServerCPU asks a server of this package how much CPU time it has used.
func ServerCPU(t Target) (time.Duration, error) {
	body, err := Ask(t, cpuPath)
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(body, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("asking %v for its CPU time: it is not a server of this bench", t.To)
	}
	return time.Duration(ns), nil
}

// datagramSocket is one for datagrams to the target.
func datagramSocket(t Target) (int, error) {
	to, err := sockaddrOf(t.To)
	if err != nil {
		return 0, err
	}
	fd, e := rawSocket(unix.SOCK_DGRAM)
	if e != 0 {
		return 0, fmt.Errorf("opening a socket: %w", e)
	}
	port := t.From.at(int(time.Now().UnixMilli()) % 1000)
	from := sockaddr{family: unix.AF_INET, port: [2]byte{byte(port >> 8), byte(port)}}
	if err = timeouts(fd, t.Patience); err == nil {
		if e := rawBind(fd, &from); e != 0 {
			err = fmt.Errorf("binding to port %d: %w", port, e)
		} else if e := rawConnect(fd, &to); e != 0 {
			err = connectError(t, e)
		}
	}
	if err != nil {
		rawClose(fd)
		return 0, err
	}
	return fd, nil
}

// RoundTrips sends count datagrams of size bytes, each after the answer to the one before, and
// returns the times in µs. It fails at the first that stays away.
func RoundTrips(t Target, count, size int) ([]float64, error) {
	if err := pin(t.CPU); err != nil {
		return nil, err
	}
	fd, err := datagramSocket(t)
	if err != nil {
		return nil, err
	}
	defer rawClose(fd)
	send, got := make([]byte, max(size, 8)), make([]byte, 65536)
	out := make([]float64, 0, count)
	for began := time.Now(); len(out) < count; {
		if time.Since(began) > t.Limit {
			return out, fmt.Errorf("%w after %d of %d datagrams", errLimit, len(out), count)
		}
		send[0], send[1] = byte(len(out)), byte(len(out)>>8)
		start := time.Now()
		if _, e := rawWrite(fd, send); e != 0 {
			return out, fmt.Errorf("sending a datagram to %v: %w", t.To, e)
		}
		n, e := rawRead(fd, got)
		if e != 0 {
			return out, fmt.Errorf("no answer to datagram %d from %v: %w", len(out)+1, t.To, e)
		}
		if !bytes.Equal(got[:n], send) {
			return out, fmt.Errorf("datagram %d came back changed", len(out)+1)
		}
		out = append(out, float64(time.Since(start).Nanoseconds())/1000)
	}
	return out, nil
}

// Flow is what a stream brought about.
type Flow struct {
	Bytes     int64         // that the server received
	Elapsed   time.Duration // from the first byte sent to the server's word that it has the last
	ClientCPU time.Duration // of the sending thread
	ServerCPU time.Duration // of the receiving one
}

// streamBuffer is the size of one write and of one read, in bytes.
const streamBuffer = 128 << 10

// Stream sends for a while over one connection to a sink.
func Stream(t Target, d time.Duration) (Flow, error) {
	if err := pin(t.CPU); err != nil {
		return Flow{}, err
	}
	to, err := sockaddrOf(t.To)
	if err != nil {
		return Flow{}, err
	}
	fd, err := clientSocket(t, t.From.at(int(time.Now().UnixMilli())%1000))
	if err != nil {
		return Flow{}, err
	}
	defer rawClose(fd)
	if e := rawConnect(fd, &to); e != 0 {
		return Flow{}, connectError(t, e)
	}
	buf := make([]byte, streamBuffer)
	start, before := time.Now(), threadCPU()
	var sent int64
	for time.Since(start) < min(d, t.Limit) {
		if err := writeAll(fd, buf); err != nil {
			return Flow{}, fmt.Errorf("sending to %v: %w", t.To, err)
		}
		sent += streamBuffer
	}
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return Flow{}, fmt.Errorf("ending the stream: %w", err)
	}
	n, e := rawRead(fd, buf)
	f := Flow{Elapsed: time.Since(start), ClientCPU: threadCPU() - before}
	if e != 0 {
		return f, fmt.Errorf("waiting for the sink's answer: %w", e)
	}
	var cpu int64
	if _, err := fmt.Sscan(string(buf[:n]), &f.Bytes, &cpu); err != nil {
		return f, fmt.Errorf("the sink answers %q: %w", buf[:n], err)
	}
	f.ServerCPU = time.Duration(cpu)
	if f.Bytes != sent {
		return f, fmt.Errorf("the sink received %d bytes of %d", f.Bytes, sent)
	}
	return f, nil
}
