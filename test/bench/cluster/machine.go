// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// thread is a network namespace with a thread of its own.
type thread struct {
	ns   *os.File
	jobs chan func() error
	done chan error
}

func (s *site) thread() *thread {
	t := &thread{jobs: make(chan func() error), done: make(chan error)}
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its namespace
		for f := range t.jobs {
			t.done <- f()
		}
	}()
	s.must(t.do(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		t.ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	}))
	return t
}

func (t *thread) do(f func() error) error {
	t.jobs <- f
	return <-t.done
}

func addAddrs(l netlink.Link, addrs ...string) error {
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("add address %s: %w", a, err)
		}
	}
	return netlink.LinkSetUp(l)
}

func up(name string, addrs ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return addAddrs(l, addrs...)
}

func veth(name, peer string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer})
}

// begin makes the node's devices: an uplink, behind which is another node with the probes' pods,
// and the addresses of fan-outs and stand-ins.
func (s *site) begin() {
	s.remote = s.thread()
	s.must(veth("eth0", "far0"))
	far, err := netlink.LinkByName("far0")
	s.must(err)
	s.must(netlink.LinkSetNsFd(far, int(s.remote.ns.Fd())))
	s.must(up("eth0", nodeAddr(0).String()+"/16"))
	eth0, err := netlink.LinkByName("eth0")
	s.must(err)
	s.must(netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.IPv4(172, 31, 255, 254)}))
	s.must(veth("pods0", "pods1"))
	s.must(up("pods1"))
	s.must(up("pods0", receivers[0].String()+"/32", receivers[1].String()+"/32"))
	lo, err := netlink.LinkByName("lo")
	s.must(err)
	s.must(addAddrs(lo, fanOutAddrs[0]+"/32", fanOutAddrs[1]+"/32"))
	_, sources, err := net.ParseCIDR("10.201.0.0/16")
	s.must(err)
	s.must(netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: sources, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Table: unix.RT_TABLE_LOCAL}))
	s.must(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
	s.must(s.remote.do(func() error {
		if err := up("lo", late(1, 0).String()+"/32", late(1, 1).String()+"/32"); err != nil {
			return err
		}
		if err := up("far0", nodeAddr(1).String()+"/16", "172.31.255.254/16"); err != nil {
			return err
		}
		_, pods, err := net.ParseCIDR(block(0).String())
		if err != nil {
			return err
		}
		far, err := netlink.LinkByName("far0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: far.Attrs().Index, Dst: pods, Gw: nodeAddr(0).AsSlice()})
	}))
}

// makeTarget has what answers the probes run: receivers of a Service on the node. Those in the
// target's namespace come with its interface.
func (s *site) makeTarget() {
	for i, a := range receivers {
		l, err := net.Listen("tcp4", netip.AddrPortFrom(a, servicePort).String())
		s.must(err)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte{byte(i)}) // who asked may be gone
				c.Close()
			}
		}()
	}
	s.pod = s.thread()
	s.probe.init(s)
}

// echo answers on ports of the target, in its namespace.
func (s *site) echo(ports ...int) {
	for _, port := range ports {
		var conn *net.UDPConn
		s.must(s.pod.do(func() (err error) {
			conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port})
			return err
		}))
		go func() {
			for b := make([]byte, 64); ; {
				n, from, err := conn.ReadFromUDP(b)
				if err != nil {
					return
				}
				_, _ = conn.WriteToUDP(b[:n], from) // the probe sends another one
			}
		}()
	}
}

// netnsPath is where a namespace is as a container runtime has it.
func (s *site) netnsPath(name string, t *thread) string {
	path := filepath.Join(s.dir, "netns", name)
	s.must(os.MkdirAll(filepath.Dir(path), 0o755))
	s.must(os.WriteFile(path, nil, 0o600))
	s.must(t.do(func() error { return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "") }))
	return path
}
