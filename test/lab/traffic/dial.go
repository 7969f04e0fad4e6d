// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// DialResult is what became of many short connections or datagrams.
type DialResult struct {
	Attempts int      `json:"attempts"`
	Failed   int      `json:"failed"`
	Slow     int      `json:"slow"` // whose SYN was sent again: it, or its answer, was lost
	P50MS    float64  `json:"p50_ms"`
	P99MS    float64  `json:"p99_ms"`
	MaxMS    float64  `json:"max_ms"`
	Errors   []string `json:"errors,omitempty"` // the first ones
	Names    []string `json:"names,omitempty"`  // of servers that answered
	Seen     []string `json:"seen,omitempty"`   // addresses that servers saw
	Peers    []string `json:"peers,omitempty"`  // where the kernel sent the connections
}

// tally adds up.
type tally struct {
	mu                 sync.Mutex
	res                DialResult
	times              []float64
	names, seen, peers map[string]bool
}

func newTally() *tally {
	return &tally{names: map[string]bool{}, seen: map[string]bool{}, peers: map[string]bool{}}
}

func (t *tally) add(answer, peer string, took time.Duration, again bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.res.Attempts++
	if err != nil {
		t.res.Failed++
		if len(t.res.Errors) < 10 {
			t.res.Errors = append(t.res.Errors, time.Now().UTC().Format("15:04:05.000 ")+err.Error())
		}
		return
	}
	if again {
		t.res.Slow++
	}
	if f := strings.Fields(answer); len(f) == 2 {
		t.names[f[0]], t.seen[f[1]] = true, true
	}
	if peer != "" {
		t.peers[peer] = true
	}
	t.times = append(t.times, float64(took.Microseconds())/1000)
}

func (t *tally) result() DialResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.res
	if n := len(t.times); n > 0 {
		sort.Float64s(t.times)
		r.P50MS, r.P99MS, r.MaxMS = t.times[n/2], t.times[min(n-1, n*99/100)], t.times[n-1]
	}
	r.Names, r.Seen, r.Peers = keys(t.names), keys(t.seen), keys(t.peers)
	return r
}

func keys(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// dialCommand makes one connection after another, each in its own time, to a "who" server. With
// --count 0 it goes on until the standard input ends, and writes "ready" after the first that
// worked.
func dialCommand() *cobra.Command {
	var every, timeout time.Duration
	var count int
	var udp bool
	c := &cobra.Command{Use: "dial ADDRESS", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		ctx := context.Background()
		if count == 0 {
			ctx = untilStdinEnds()
		}
		once := dialTCP
		if udp {
			once = dialUDP
		}
		t, slots, ready := newTally(), make(chan struct{}, 256), sync.Once{}
		var all sync.WaitGroup
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := 0; (count == 0 || i < count) && ctx.Err() == nil; i++ {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				began := time.Now()
				answer, peer, again, err := once(args[0], timeout)
				t.add(answer, peer, time.Since(began), again, err)
				if err == nil && count == 0 {
					ready.Do(func() { _ = say("ready") })
				}
			})
			if count == 0 || i+1 < count {
				<-tick.C
			}
		}
		all.Wait()
		return say(t.result())
	}}
	c.Flags().DurationVar(&every, "every", 10*time.Millisecond, "between two connections")
	c.Flags().DurationVar(&timeout, "timeout", 20*time.Second, "for one")
	c.Flags().IntVar(&count, "count", 0, "how many; 0 = until the standard input ends")
	c.Flags().BoolVar(&udp, "udp", false, "datagrams, each from a new socket")
	return c
}

func dialTCP(to string, timeout time.Duration) (answer, peer string, again bool, err error) {
	conn, err := net.DialTimeout("tcp", to, timeout)
	if err != nil {
		return "", "", false, err
	}
	defer conn.Close()
	again = synAgain(conn.(*net.TCPConn))
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if answer, err = bufio.NewReader(conn).ReadString('\n'); err != nil {
		return "", "", again, fmt.Errorf("reading the answer: %w", err)
	}
	return answer, kernelPeer(conn.LocalAddr().(*net.TCPAddr)), again, nil
}

// synAgain says whether a connection that was just made had to send its SYN again. The kernel
// counts it, so a busy machine that lets this program wait is not taken for a lost packet.
func synAgain(conn *net.TCPConn) bool {
	again := false
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		again = err == nil && info.Total_retrans > 0
	})
	return again
}

// dialUDP sends one datagram and waits for its answer: nothing is sent twice.
func dialUDP(to string, timeout time.Duration) (answer, peer string, again bool, err error) {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return "", "", false, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if _, err := conn.Write([]byte("who")); err != nil {
		return "", "", false, err
	}
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	return string(buf[:n]), "", false, err
}

// peersWanted switches on what costs a look at all sockets.
var peersWanted = os.Getenv("TRAFFIC_PEERS") != ""

// kernelPeer is where the kernel sends the connection that has a local address and port: programs
// at connect change that, and hide it from getpeername.
func kernelPeer(local *net.TCPAddr) string {
	if !peersWanted {
		return ""
	}
	table, words := "tcp", 1 // of an address: 32 bits each, in the machine's byte order
	if local.IP.To4() == nil {
		table, words = "tcp6", 4
	}
	b, err := os.ReadFile("/proc/self/net/" + table)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", local.Port)) && f[3] == "01" {
			ip, p, _ := strings.Cut(f[2], ":")
			raw, err := hex.DecodeString(ip)
			if err != nil || len(raw) != 4*words {
				return ""
			}
			for i := 0; i < len(raw); i += 4 {
				binary.BigEndian.PutUint32(raw[i:], binary.NativeEndian.Uint32(raw[i:]))
			}
			var n int
			_, _ = fmt.Sscanf(p, "%X", &n) // the kernel's own hexadecimal digits
			return net.JoinHostPort(net.IP(raw).String(), strconv.Itoa(n))
		}
	}
	return ""
}

// datagramsCommand sends numbered datagrams from one socket to an echo server and counts those that
// do not come back.
func datagramsCommand() *cobra.Command {
	var every time.Duration
	c := &cobra.Command{Use: "datagrams ADDRESS", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		conn, err := net.Dial("udp", args[0])
		if err != nil {
			return err
		}
		defer conn.Close()
		t := newTally()
		var mu sync.Mutex
		open := map[string]time.Time{}
		go func() {
			buf, first := make([]byte, 100), true
			for {
				n, err := conn.Read(buf)
				if err != nil {
					if conn.SetReadDeadline(time.Time{}) != nil {
						return
					}
					continue
				}
				mu.Lock()
				began, ok := open[string(buf[:n])]
				delete(open, string(buf[:n]))
				mu.Unlock()
				if ok {
					t.add("", "", time.Since(began), false, nil)
				}
				if first {
					first = false
					_ = say("ready")
				}
			}
		}()
		ctx := untilStdinEnds()
		for i := 0; ctx.Err() == nil; i++ {
			id := fmt.Sprintf("e%d", i)
			mu.Lock()
			open[id] = time.Now()
			mu.Unlock()
			if _, err := conn.Write([]byte(id)); err != nil {
				mu.Lock()
				delete(open, id)
				mu.Unlock()
				t.add("", "", 0, false, err)
			}
			time.Sleep(every)
		}
		// Each has ten seconds to come back; what was lost long ago is not waited for.
		awaited := func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, began := range open {
				if time.Since(began) < 10*time.Second {
					return true
				}
			}
			return false
		}
		for awaited() {
			time.Sleep(50 * time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		for id, began := range open {
			t.add("", "", 0, false, fmt.Errorf("datagram %s of %s did not come back", id, began.UTC().Format("15:04:05.000")))
		}
		return json.NewEncoder(os.Stdout).Encode(t.result())
	}}
	c.Flags().DurationVar(&every, "every", 10*time.Millisecond, "between two datagrams")
	return c
}
