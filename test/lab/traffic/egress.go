// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// firstSYN is less than the time after which a SYN is repeated: a connection that opened within it
// was opened by its first one.
const firstSYN = 300 * time.Millisecond

// SourcesResult is who sent to two ports.
type SourcesResult struct {
	By     map[string]int `json:"by"`     // packets, by "SOURCE udp KIND" or "SOURCE tcp"
	Named  map[string]int `json:"named"`  // datagrams "KIND NAME" of different names, by kind
	Missed uint32         `json:"missed"` // packets that nobody looked at
}

// sourcesCommand counts packets that come in to a port of UDP and SYNs to one of TCP, as they are
// on the link: whoever sends them need not be reachable.
func sourcesCommand() *cobra.Command {
	var udp, tcp uint16
	c := &cobra.Command{Use: "sources", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_IP))))
		if err != nil {
			return fmt.Errorf("opening a packet socket: %w", err)
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
			return err
		}
		if err := say("ready"); err != nil {
			return err
		}
		res, names, buf := SourcesResult{By: map[string]int{}, Named: map[string]int{}}, map[string]bool{}, make([]byte, 1<<16)
		for ctx := untilStdinEnds(); ; {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				if ctx.Err() != nil {
					break
				}
				continue
			}
			if err != nil {
				return err
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype != unix.PACKET_OUTGOING {
				res.note(buf[:n], udp, tcp, names)
			}
		}
		st, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err != nil {
			return err
		}
		res.Missed = st.Drops
		return say(res)
	}}
	c.Flags().Uint16Var(&udp, "udp", 0, "")
	c.Flags().Uint16Var(&tcp, "tcp", 0, "")
	return c
}

// note counts a packet of IPv4.
func (r *SourcesResult) note(p []byte, udp, tcp uint16, names map[string]bool) {
	if len(p) < 20 || len(p) < int(p[0]&15)*4+8 {
		return
	}
	l4 := p[int(p[0]&15)*4:]
	port, src := binary.BigEndian.Uint16(l4[2:]), netip.AddrFrom4([4]byte(p[12:])).String()
	switch {
	case p[9] == unix.IPPROTO_UDP && port == udp:
		kind, _, named := strings.Cut(string(l4[8:]), " ")
		r.By[src+" udp "+kind]++
		if text := string(l4[8:]); named && !names[text] {
			names[text] = true
			r.Named[kind]++
		}
	case p[9] == unix.IPPROTO_TCP && port == tcp && len(l4) >= 14 && l4[13]&0x12 == 0x02:
		r.By[src+" tcp"]++
	}
}

// AddsResult is what became of what network namespaces sent while they were given a network.
type AddsResult struct {
	Adds int `json:"adds"`
	// Early are those that had an address and a route before ADD ended, and sent then.
	Early        int       `json:"early"`
	EarlyOpened  int       `json:"early_opened"`   // whose connection of then opened by its first SYN, before the one after ADD
	OpenedAtOnce int       `json:"opened_at_once"` // whose connection after ADD opened by its first SYN
	Add          []float64 `json:"add_ms"`
}

// addsCommand calls the CNI plugin for pods PREFIX-0 … that exist in the API, again and again:
// ADD, and DEL. Each time the new network namespace sends a datagram and a SYN as soon as it has a
// route, again when ADD has ended, and datagrams all the time while DEL takes its network away.
func addsCommand() *cobra.Command {
	var plugin, conf, namespace, prefix, udp, tcp string
	var pods, count, parallel int
	c := &cobra.Command{Use: "adds", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		stdin, err := networkConfig(conf)
		if err != nil {
			return err
		}
		dir, err := os.MkdirTemp("", "weir-cni-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		a := adder{plugin: plugin, stdin: stdin, dir: dir, namespace: namespace, prefix: prefix}
		if a.udp, err = sockaddr(udp); err != nil {
			return err
		}
		if a.tcp, err = sockaddr(tcp); err != nil {
			return err
		}
		var wg sync.WaitGroup
		errs := make([]error, parallel)
		for w := range parallel {
			wg.Go(func() {
				for i := w; i < count && errs[w] == nil; i += parallel {
					// A pod is one worker's.
					errs[w] = a.add(w+parallel*(i/parallel%(pods/parallel)), i)
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return say(a.res)
	}}
	c.Flags().StringVar(&plugin, "plugin", "/opt/cni/bin/weir-cni", "")
	c.Flags().StringVar(&conf, "conf", "/etc/cni/net.d/10-weir.conflist", "")
	c.Flags().StringVar(&namespace, "namespace", "", "")
	c.Flags().StringVar(&prefix, "prefix", "", "")
	c.Flags().StringVar(&udp, "udp", "", "")
	c.Flags().StringVar(&tcp, "tcp", "", "")
	c.Flags().IntVar(&pods, "pods", 100, "")
	c.Flags().IntVar(&count, "count", 100, "")
	c.Flags().IntVar(&parallel, "parallel", 8, "divides --pods")
	return c
}

type adder struct {
	plugin, dir, namespace, prefix string
	stdin                          []byte
	udp, tcp                       unix.Sockaddr

	mu  sync.Mutex
	res AddsResult
}

func sockaddr(to string) (unix.Sockaddr, error) {
	a, err := netip.ParseAddrPort(to)
	if err != nil || !a.Addr().Is4() {
		return nil, fmt.Errorf("%q is no address and port of IPv4: %w", to, err)
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}, nil
}

func (a *adder) call(command string, pod, i int) error {
	if out, err := pluginCommand(a.plugin, a.stdin, command, a.dir, a.namespace, a.prefix, pod, i).CombinedOutput(); err != nil {
		return fmt.Errorf("%s of pod %d, call %d: %w: %s", command, pod, i, err, out)
	}
	return nil
}

// add gives a pod a network, which is used at once, and takes it away.
func (a *adder) add(pod, i int) error {
	path := filepath.Join(a.dir, fmt.Sprint(i))
	if err := makeNetns(path); err != nil {
		return err
	}
	defer func() {
		_ = unix.Unmount(path, unix.MNT_DETACH)
		_ = os.Remove(path)
	}()
	begun, added, gone, sent := make(chan error, 1), make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() { a.sends(path, i, begun, added, gone, sent) }()
	if err := <-begun; err != nil {
		return err
	}
	began := time.Now()
	err := a.call("ADD", pod, i)
	took := float64(time.Since(began).Microseconds()) / 1000
	close(added)
	told := <-sent
	if err == nil {
		a.mu.Lock()
		a.res.Adds++
		a.res.Add = append(a.res.Add, took)
		a.mu.Unlock()
	}
	err = errors.Join(err, told, a.call("DEL", pod, i))
	close(gone)
	return errors.Join(err, <-sent)
}

// sends is what a network namespace sends. The thread ends with it.
func (a *adder) sends(path string, i int, begun chan<- error, added, gone <-chan struct{}, sent chan<- error) {
	runtime.LockOSThread()
	ns, err := os.Open(path)
	if err == nil {
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		_ = ns.Close()
	}
	begun <- err
	if err != nil {
		return
	}
	early := -1
	defer func() {
		if early >= 0 {
			_ = unix.Close(early)
		}
	}()
	for waiting := true; waiting && early < 0; {
		select {
		case <-added:
			waiting = false
		default:
			if early = a.sendNow("early", i); early < 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	<-added
	after := a.sendNow("after", i)
	if after < 0 {
		sent <- fmt.Errorf("call %d: there is no route when ADD has ended", i)
		sent <- nil
		return
	}
	defer unix.Close(after)
	opened := opens(after, firstSYN)
	a.count(early >= 0, early >= 0 && opens(early, 0), opened)
	// What is sent while DEL is under way goes on a flow from before: DEL takes the routes.
	old, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err == nil {
		defer unix.Close(old)
		err = unix.Connect(old, a.udp)
	}
	if err != nil {
		err = fmt.Errorf("call %d: connecting: %w", i, err)
	}
	sent <- err
	a.sendsOn(old, i, gone)
	sent <- nil
}

// count enters what became of one.
func (a *adder) count(early, earlyOpened, opened bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n, is := range map[*int]bool{&a.res.Early: early, &a.res.EarlyOpened: earlyOpened, &a.res.OpenedAtOnce: opened} {
		if is {
			*n++
		}
	}
}

// sendsOn sends on a socket that is connected, and on new ones, until the network is gone.
func (a *adder) sendsOn(old, i int, gone <-chan struct{}) {
	for {
		select {
		case <-gone:
			return
		case <-time.After(200 * time.Microsecond):
		}
		_ = unix.Send(old, fmt.Appendf(nil, "late %d", i), 0)
		if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0); err == nil {
			_ = unix.Sendto(fd, fmt.Appendf(nil, "late %d", i), 0, a.udp)
			_ = unix.Close(fd)
		}
	}
}

// sendNow sends a datagram and begins a connection, which it returns; -1 = there is no route.
func (a *adder) sendNow(kind string, i int) int {
	u, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return -1
	}
	defer unix.Close(u)
	if unix.Connect(u, a.udp) != nil || unix.Send(u, fmt.Appendf(nil, "%s %d", kind, i), 0) != nil {
		return -1
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1
	}
	if err := unix.Connect(fd, a.tcp); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// opens reports whether a connection opens in time.
func opens(fd int, within time.Duration) bool {
	for end := time.Now().Add(within); ; {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(p, int(max(time.Until(end), 0).Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 1 && p[0].Revents&(unix.POLLERR|unix.POLLHUP) == 0
	}
}

// firstCommand sends a datagram and a SYN at once, as the first program of a pod. It ends with code
// 3 where that SYN opened a connection, with 4 where only a later one did.
func firstCommand() *cobra.Command {
	var name, udp, tcp string
	var lasting time.Duration
	c := &cobra.Command{Use: "first", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		var a adder
		var err error
		if a.udp, err = sockaddr(udp); err != nil {
			return err
		}
		if a.tcp, err = sockaddr(tcp); err != nil {
			return err
		}
		var n int
		if _, err := fmt.Sscan(name, &n); err != nil {
			return fmt.Errorf("--name %s is no number: %w", name, err)
		}
		code := 3
		for end := time.Now().Add(lasting); time.Now().Before(end); code = 4 {
			kind := "pod"
			if code == 4 {
				kind = "again"
			}
			if fd := a.sendNow(kind, n); fd >= 0 && opens(fd, firstSYN) {
				os.Exit(code)
			}
		}
		return errors.New("no connection opened")
	}}
	c.Flags().StringVar(&name, "name", "", "a number")
	c.Flags().StringVar(&udp, "udp", "", "")
	c.Flags().StringVar(&tcp, "tcp", "", "")
	c.Flags().DurationVar(&lasting, "for", 30*time.Second, "")
	return c
}
