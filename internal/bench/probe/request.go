// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Everything over TCP begins with a request of HTTP/1.1 whose head fits maxHead bytes. What a path
// of it means:
//
//	GET  /            an answer with ?bytes=N of body
//	GET  /who         the server's name
//	GET  /stat        a Reading
//	POST /rr?bytes=N  from then on the connection echoes messages of N bytes
//	POST /sink        from then on it swallows; at the end of the stream it answers how many bytes there were
//	POST /udp         the body is the name of a session of datagrams; each line that follows is answered by its counters
const maxHead = 4096

// head is a request's.
type head struct {
	method, path string
	query        url.Values
	closes       bool // the client wants the server to close the connection
	token        string
}

// requestText is a request as clients of this package make it.
func requestText(method, target, token string, closes bool) []byte {
	connection := "keep-alive"
	if closes {
		connection = "close"
	}
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: weir-bench\r\nUser-Agent: weir-bench\r\nAuthorization: Bearer %s\r\nConnection: %s\r\n\r\n",
		method, target, token, connection)
}

// answerText is a server's answer.
func answerText(status string, body []byte) []byte {
	return append(fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", status, len(body)), body...)
}

var headEnd = []byte("\r\n\r\n")

// buffered reads a connection by pieces that end where the peer's do not.
type buffered struct {
	s          socket
	buf        []byte
	start, end int
}

func newBuffered(s socket) *buffered { return &buffered{s: s, buf: make([]byte, 16<<10)} }

// reset makes it read another connection.
func (b *buffered) reset(s socket) { b.s, b.start, b.end = s, 0, 0 }

// more reads from the connection once.
func (b *buffered) more() error {
	if b.start > 0 {
		copy(b.buf, b.buf[b.start:b.end])
		b.start, b.end = 0, b.end-b.start
	}
	if b.end == len(b.buf) {
		return fmt.Errorf("more than %d bytes in one piece", len(b.buf))
	}
	n, err := b.s.read(b.buf[b.end:])
	if err != nil {
		return err
	}
	if n == 0 {
		return errEnd
	}
	b.end += n
	return nil
}

var errEnd = errors.New("the connection ended")

// until returns what comes up to the end mark, and the mark; valid until the next read.
func (b *buffered) until(mark []byte, limit int) ([]byte, error) {
	for {
		if i := bytes.Index(b.buf[b.start:b.end], mark); i >= 0 {
			out := b.buf[b.start : b.start+i+len(mark)]
			b.start += len(out)
			return out, nil
		}
		if b.end-b.start >= limit {
			return nil, fmt.Errorf("more than %d bytes in one piece", limit)
		}
		if err := b.more(); err != nil {
			return nil, err
		}
	}
}

// skip reads n bytes and forgets them.
func (b *buffered) skip(n int) error {
	for {
		have := min(n, b.end-b.start)
		b.start += have
		if n -= have; n == 0 {
			return nil
		}
		if err := b.more(); err != nil {
			return err
		}
	}
}

// body reads n bytes that fit the buffer; valid until the next read.
func (b *buffered) body(n int) ([]byte, error) {
	if n > len(b.buf) {
		return nil, fmt.Errorf("a body of %d bytes is too long", n)
	}
	for b.end-b.start < n {
		if err := b.more(); err != nil {
			return nil, err
		}
	}
	out := b.buf[b.start : b.start+n]
	b.start += n
	return out, nil
}

func parseHead(raw []byte) (head, error) {
	first, rest, _ := strings.Cut(string(raw), "\r\n")
	words := strings.Fields(first)
	if len(words) != 3 || words[2] != "HTTP/1.1" {
		return head{}, errors.New("not a request of HTTP/1.1")
	}
	at, query, _ := strings.Cut(words[1], "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return head{}, err
	}
	h := head{method: words[0], path: at, query: values}
	for line := range strings.SplitSeq(rest, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "authorization":
			h.token = strings.TrimPrefix(value, "Bearer ")
		case "connection":
			h.closes = strings.EqualFold(value, "close")
		case "content-length", "transfer-encoding":
			return head{}, errors.New("requests have no body here")
		}
	}
	return h, nil
}

// knows compares tokens in a time that does not reveal how much of one is right.
func (h head) knows(token string) bool {
	return subtle.ConstantTimeCompare([]byte(h.token), []byte(token)) == 1
}

// number is a value of the query within bounds.
func (h head) number(name string, least, most int) (int, error) {
	n, err := strconv.Atoi(h.query.Get(name))
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s=%q: want %d to %d", name, h.query.Get(name), least, most)
	}
	return n, nil
}

// readAnswer reads the head of an answer and returns the length of its body. It allocates nothing
// when all is well.
func (b *buffered) readAnswer() (int, error) {
	raw, err := b.until(headEnd, maxHead)
	if err != nil {
		return 0, err
	}
	const ok, length = "HTTP/1.1 200 ", "\r\nContent-Length: "
	if !bytes.HasPrefix(raw, []byte(ok)) {
		line, _, _ := bytes.Cut(raw, []byte("\r\n"))
		return 0, fmt.Errorf("the server answers %q", line)
	}
	at := bytes.Index(raw, []byte(length))
	if at < 0 {
		return 0, errors.New("the answer has no Content-Length")
	}
	n := 0
	for _, c := range raw[at+len(length):] {
		if c < '0' || c > '9' {
			break
		}
		if n = n*10 + int(c-'0'); n > maxMessage {
			return 0, fmt.Errorf("the answer's body is longer than %d bytes", maxMessage)
		}
	}
	return n, nil
}
