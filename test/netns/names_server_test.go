// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// The zone of nameServer, below "names.test": n7 has address 7 of many, c7 is another name (CNAME)
// of n7.cdn.test, which has it too, "many" has the first 40, "shared" that of n7, "huge" so many
// that the answer goes by TCP. So do answers about names below "split", in pieces of many segments.
// Names below "long" count for an hour. Answers about names below "forged" come between two others.
const (
	zoneMany = 40
	zoneHuge = 100
	zoneTTL  = 1 // seconds
	zoneLong = 3600
)

// asksAgain is after how long a resolver asks again: a look-up whose answer is lost takes longer.
const asksAgain = 5 * time.Second

// zoneAddr is address i of the zone, in both families.
func zoneAddr(i int) (four, six netip.Addr) {
	b := [16]byte{0xfd, 0x98, 15: byte(i), 14: byte(i >> 8)}
	return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), netip.AddrFrom16(b)
}

// nameServer answers for the zone at r.Addr, by UDP and TCP. What r.Name says it is does it to
// answers: "plain" compresses no names.
func nameServer(r request) error {
	pc, err := net.ListenPacket("udp", r.Addr)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", r.Addr)
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
			before, after := forgeries(buf[:n])
			for _, out := range [][]byte{before, zoneAnswer(buf[:n], true), after} {
				if out != nil {
					pc.WriteTo(out, from)
				}
			}
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var size [2]byte
				for {
					if _, err := io.ReadFull(c, size[:]); err != nil {
						return
					}
					q := make([]byte, binary.BigEndian.Uint16(size[:]))
					if _, err := io.ReadFull(c, q); err != nil {
						return
					}
					out := zoneAnswer(q, false)
					sendPieces(c, append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...), bytes.Contains(q, []byte("\x05split")))
				}
			}()
		}
	}()
	return nil
}

// sendPieces sends a message by TCP: at once; or its length by itself, and the rest in three parts.
func sendPieces(c net.Conn, b []byte, split bool) {
	if split {
		third := len(b) / 3
		for _, n := range []int{2, third, third} {
			c.Write(b[:n])
			b = b[n:]
		}
	}
	c.Write(b)
}

func zoneAnswer(q []byte, udp bool) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(q)
	if err != nil {
		return nil
	}
	question, err := p.Question()
	if err != nil {
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(question.Name.String(), "."))
	owner, first, count := question.Name, 0, 0
	var alias string
	label, _, _ := strings.Cut(name, ".")
	switch {
	case label == "many":
		count = zoneMany
	case label == "huge":
		count = zoneHuge
	case label == "shared":
		first, count = 7, 1
	default:
		if _, err := fmt.Sscanf(label[1:], "%d", &first); err != nil {
			return nil
		}
		count = 1
		if label[0] == 'c' {
			alias = fmt.Sprintf("n%d.cdn.test.", first)
		}
	}
	h.Response, h.RecursionAvailable = true, true
	if udp && (count > zoneMany || strings.Contains(name, ".split.")) {
		h.Truncated, count = true, 0
	}
	b := dnsmessage.NewBuilder(nil, h)
	if first%2 == 0 {
		b.EnableCompression()
	}
	fail := errors.Join(b.StartQuestions(), b.Question(question), b.StartAnswers())
	rh := dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET, TTL: zoneTTL}
	if strings.Contains(name, ".long.") {
		rh.TTL = zoneLong
	}
	if alias != "" {
		fail = errors.Join(fail, b.CNAMEResource(rh, dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(alias)}))
		rh.Name = dnsmessage.MustNewName(alias)
	}
	for i := range count {
		four, six := zoneAddr(first + i)
		switch question.Type {
		case dnsmessage.TypeA:
			fail = errors.Join(fail, b.AResource(rh, dnsmessage.AResource{A: four.As4()}))
		case dnsmessage.TypeAAAA:
			fail = errors.Join(fail, b.AAAAResource(rh, dnsmessage.AAAAResource{AAAA: six.As16()}))
		}
	}
	out, err := b.Finish()
	if errors.Join(fail, err) != nil {
		return nil
	}
	return out
}

// lookUp asks the name server r.From for the addresses of r.Name of one family (r.Net: ip4, ip6).
func lookUp(r request, name string) ([]netip.Addr, error) {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, r.From)
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return resolver.LookupNetIP(ctx, r.Net, name+".")
}

// firsts looks up a name of each number from r.ID on, r.Size of them, and connects to all of its
// addresses at once; "%d" in r.Name is the number. It counts connections, and those that were not
// made.
func firsts(r request) answer {
	out := answer{Counters: map[string]int{}}
	note := func(what string, err error) {
		out.Counters[what]++
		if err != nil && out.Err == "" {
			out.Err = what + ": " + err.Error()
		}
	}
	var took []time.Duration
	defer func() {
		slices.Sort(took)
		out.Counters["look-up p50, us"] = int(took[len(took)/2].Microseconds())
		out.Counters["look-up p99, us"] = int(took[len(took)*99/100].Microseconds())
	}()
	for i := r.ID; i < r.ID+r.Size; i++ {
		name := r.Name
		if strings.Contains(name, "%") {
			name = fmt.Sprintf(name, i)
		}
		asked := time.Now()
		addrs, err := lookUp(r, name)
		took = append(took, time.Since(asked))
		if err != nil {
			note("not found", err)
			continue
		}
		for _, a := range addrs {
			d := net.Dialer{Timeout: time.Duration(r.Timeout) * time.Millisecond, KeepAlive: noKeepAlive,
				Control: func(_, _ string, raw syscall.RawConn) error {
					return raw.Control(func(fd uintptr) { // no port is kept for long after the end
						syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
					})
				}}
			c, err := d.Dial("tcp", netip.AddrPortFrom(a, 7000).String())
			if err != nil {
				note("denied", err)
				continue
			}
			if sentAgain(c) {
				note("late", errors.New("the first SYN was lost"))
			} else {
				note("connected", nil)
			}
			c.Close()
		}
	}
	return out
}

// sentAgain reports whether the kernel sent anything of a connection again.
func sentAgain(c net.Conn) (again bool) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		again = err == nil && info.Total_retrans > 0
	})
	return again
}
