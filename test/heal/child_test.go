// SPDX-License-Identifier: Apache-2.0

package heal

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	ciliumebpf "github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// taskEnv holds a task in JSON; a process of this test binary that has it does that task and ends.
const taskEnv = "WEIR_HEAL_TASK"

// task is what a process in a namespace of the test does.
type task struct {
	Op string // stay, ask, occupy, poison

	To      []netip.AddrPort // ask, occupy: where to
	Ports   [2]uint16        // ask, occupy: local ports, first and last; 0 = the kernel chooses one
	Seconds int              // ask: for how long it is tried again while no API server answers

	NFT           bool   // poison: the driver
	BPFFS, Cgroup string // poison
}

// thiefSays is what the backend of a wrong frontend says to everybody.
const thiefSays = "thief"

// errThief is the answer of something else than the API server.
var errThief = errors.New("the thief answered")

func TestMain(m *testing.M) {
	text := os.Getenv(taskEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var t task
	err := json.Unmarshal([]byte(text), &t)
	if err == nil {
		err = t.do()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (t task) do() error {
	switch t.Op {
	case "stay":
		return stay()
	case "ask":
		return t.ask()
	case "occupy":
		return t.occupy()
	case "poison":
		return t.poison()
	}
	return fmt.Errorf("no such task: %q", t.Op)
}

// stay holds a network namespace until the standard input is closed, and is the thief there.
func stay() error {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", thiefPort))
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
				fmt.Fprintln(c, thiefSays)
				io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// eachPort calls f with each local port of the task, and joins the errors; a port that a connection
// of before still has is left out.
func (t task) eachPort(f func(port uint16) error) error {
	if t.Ports[0] == 0 {
		return f(0)
	}
	var errs []error
	done := 0
	for p := t.Ports[0]; p <= t.Ports[1]; p++ {
		err := f(p)
		if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		done++
		if err != nil {
			errs = append(errs, fmt.Errorf("from port %d: %w", p, err))
		}
	}
	if done == 0 {
		return errors.New("no port is free")
	}
	return errors.Join(errs...)
}

// dialer connects from a local port, also one that other connections have.
func dialer(port uint16, timeout time.Duration) *net.Dialer {
	d := &net.Dialer{Timeout: timeout}
	if port != 0 {
		d.LocalAddr = &net.TCPAddr{Port: int(port)}
		d.Control = func(_, _ string, raw syscall.RawConn) error {
			var set error
			err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
			return errors.Join(err, set)
		}
	}
	return d
}

// ask asks the API server whether it is ready, as another process of the node would.
func (t task) ask() error {
	deadline := time.Now().Add(time.Duration(t.Seconds) * time.Second)
	for {
		var errs []error
		for _, to := range t.To {
			errs = append(errs, t.eachPort(func(port uint16) error { return askOnce(to, port) }))
		}
		err := errors.Join(errs...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func askOnce(to netip.AddrPort, port uint16) error {
	c, err := dialer(port, time.Second).Dial("tcp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	c.(*net.TCPConn).SetLinger(0) // so that the port is free again
	c.SetDeadline(time.Now().Add(5 * time.Second))
	in := bufio.NewReader(c)
	secure := tls.Client(readFrom{c, in}, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}) // distinguishes the API server from a thief
	if err := secure.Handshake(); err != nil {
		if errors.As(err, new(tls.RecordHeaderError)) {
			return fmt.Errorf("%s: %w", to, errThief)
		}
		return err
	}
	r, err := http.NewRequest(http.MethodGet, "https://"+to.String()+"/version", nil)
	if err != nil {
		return err
	}
	if err := r.Write(secure); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(secure), r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// readFrom is a connection that is read through a buffer.
type readFrom struct {
	net.Conn
	in *bufio.Reader
}

func (r readFrom) Read(b []byte) (int, error) { return r.in.Read(b) }

// occupy makes a connection from each port that the thief answers, and has the socket vanish
// without a packet: what translates the connection stays.
func (t task) occupy() error {
	n := 0
	err := t.eachPort(func(port uint16) error {
		c, err := dialer(port, 5*time.Second).Dial("tcp", t.To[0].String())
		if err != nil {
			return err
		}
		c.SetDeadline(time.Now().Add(5 * time.Second))
		if said, err := bufio.NewReader(c).ReadString('\n'); strings.TrimSpace(said) != thiefSays {
			c.Close()
			return fmt.Errorf("%q (%v), want the thief", said, err)
		}
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		var set error
		err = errors.Join(raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR, 1) }), set, c.Close())
		if err == nil {
			n++
		}
		return err
	})
	fmt.Println(n)
	return err
}

// poison applies the state on the standard input by a driver that works on the tables of the node's
// agent.
func (t task) poison() error {
	var s nodestate.State
	if err := gob.NewDecoder(os.Stdin).Decode(&s); err != nil {
		return err
	}
	// What is left of connections that ended would keep their ports from the thief.
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("emptying the table of connections: %w", err)
	}
	d, err := t.driver(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	for {
		err := d.Apply(context.Background(), &s, nodestate.All())
		if !errors.Is(err, dataplane.ErrUnfinished) {
			return errors.Join(err, d.Close())
		}
	}
}

func (t task) driver(log *slog.Logger) (dataplane.Driver, error) {
	if t.NFT {
		return nft.New(nft.Options{Logger: log})
	}
	sizes, err := t.sizes()
	if err != nil {
		return nil, err
	}
	return ebpf.New(ebpf.Options{Logger: log, BPFFS: t.BPFFS, Cgroup: t.Cgroup, Sizes: sizes, SetRetval: !kernel.Lacks(kernel.FeatureSetRetval),
		NoTCX: kernel.Lacks(kernel.FeatureTCX), Left: func() (conntrack.Left, error) { return conntrack.Left{}, nil }})
}

// sizes are those of the agent's maps, so that they stay as they are.
func (t task) sizes() (map[string]uint32, error) {
	sizes := map[string]uint32{}
	for _, name := range []string{"flows", "flows_new", "services", "backends", "live", "affinity", "addrs", "routes", "peers", "peer_cidrs", "events"} {
		name = "weir_" + name
		found, err := filepath.Glob(filepath.Join(t.BPFFS, "*", "*", name))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			m, err := ciliumebpf.LoadPinnedMap(path, nil)
			if err != nil {
				return nil, err
			}
			sizes[name] = m.MaxEntries()
			if name == "weir_peer_cidrs" { // has room for what was and what will be
				sizes[name] /= 2
			}
			m.Close()
		}
	}
	return sizes, nil
}

// in is the command of a process of this test binary that does a task.
func (t task) in(ns *space) *exec.Cmd {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // plain values
	}
	self, err := os.Executable()
	if err != nil {
		panic(err) // there is /proc
	}
	cmd := ns.command(self)
	cmd.Env = append(os.Environ(), taskEnv+"="+string(text))
	return cmd
}

// run has a process in the namespace do the task, with an input; its output comes back.
func (t task) run(ns *space, in io.Reader) (string, error) {
	cmd := t.in(ns)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &out
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return strings.TrimSpace(out.String()), err
}
