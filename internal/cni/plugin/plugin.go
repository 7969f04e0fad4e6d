// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/cni/wire"
)

// maxStdin bounds the network configuration, bytes.
const maxStdin = 1 << 20

// The time that the agent has for a call. A runtime that gives up earlier ends the plugin, and the
// agent undoes what it did.
const timeout = 60 * time.Second

// StartTimeout is how long ADD and DEL wait for an agent that is being started. Without it a
// restart of the agent would fail the start of a pod, and kubelet tries again only after 10 to 15
// s. Tests shorten it.
var StartTimeout = 30 * time.Second

// startInterval is how often they ask meanwhile.
const startInterval = 100 * time.Millisecond

// Main serves one CNI call from the environment and the standard input, and returns the exit
// status.
func Main(about string) int {
	if os.Getenv("CNI_COMMAND") == "DEL" {
		// A DEL needs no namespace, and the library would open whatever the path leads to by now.
		os.Unsetenv("CNI_NETNS")
	}
	if os.Getenv("CNI_COMMAND") != "" {
		if err := boundStdin(); err != nil {
			return report(types.NewError(wire.CodeIO, err.Error(), ""))
		}
	}
	funcs := skel.CNIFuncs{Add: add, Del: func(a *skel.CmdArgs) error { return forward("DEL", a) },
		Check: func(a *skel.CmdArgs) error { return forward("CHECK", a) },
		GC:    func(a *skel.CmdArgs) error { return forward("GC", a) }, Status: status}
	versions := version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")
	if err := skel.PluginMainFuncsWithError(funcs, versions, about); err != nil {
		return report(err)
	}
	return 0
}

func report(err *types.Error) int {
	if perr := err.Print(); perr != nil {
		fmt.Fprintln(os.Stderr, "cannot write the error to the standard output:", perr, "the error was:", err)
	}
	return 1
}

// boundStdin replaces the standard input by what was read of it, at most maxStdin bytes.
func boundStdin() error {
	data, err := io.ReadAll(io.LimitReader(os.Stdin, maxStdin+1))
	if err != nil {
		return fmt.Errorf("read the network configuration from the standard input: %w", err)
	}
	if len(data) > maxStdin {
		return fmt.Errorf("the network configuration is larger than %d bytes", maxStdin)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("hand the network configuration on: %w", err)
	}
	go func() {
		_, _ = w.Write(data) // who does not read it to its end has no use for it
		w.Close()
	}()
	os.Stdin = r
	return nil
}

func call(req wire.Request, conf config, netns *os.File) (*wire.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	res, err := wire.Call(ctx, conf.Socket, req, netns)
	var remote *wire.Error
	// Both commands may be repeated (CNI specification, section 2): an agent that ended before it
	// answered finds out what it had done.
	if req.Command == "ADD" || req.Command == "DEL" {
		for began := time.Now(); time.Since(began) < StartTimeout && starting(err); {
			time.Sleep(startInterval)
			res, err = wire.Call(ctx, conf.Socket, req, netns)
		}
	}
	if errors.As(err, &remote) {
		return nil, types.NewError(remote.Code, remote.Message, remote.Details)
	}
	if err != nil {
		return nil, types.NewError(wire.CodeTryAgain,
			fmt.Sprintf("weir-agent on this node does not answer at %s", conf.Socket),
			fmt.Sprintf("%v; see the pod weir-node of this node (kubectl -n kube-system get pods -o wide)", err))
	}
	return res, nil
}

// starting reports whether a call failed for want of an agent that has finished its start: nobody
// listens, the agent ended before it answered, or it says so.
func starting(err error) bool {
	var remote *wire.Error
	if errors.As(err, &remote) {
		return remote.Starting
	}
	for _, gone := range []error{unix.ENOENT, unix.ECONNREFUSED, unix.EAGAIN, unix.ECONNRESET, unix.EPIPE, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

func forward(command string, args *skel.CmdArgs) error {
	req, conf, err := parse(command, args)
	if err != nil {
		return err
	}
	var netns *os.File
	if command == "CHECK" {
		if netns, err = openNetns(args.Netns); err != nil {
			return err
		}
		defer netns.Close()
	}
	_, err = call(req, conf, netns)
	return err
}

func status(args *skel.CmdArgs) error {
	req, conf, err := parse("STATUS", args)
	if err != nil {
		return err
	}
	_, err = call(req, conf, nil)
	var e *types.Error
	if errors.As(err, &e) && e.Code == wire.CodeTryAgain {
		e.Code = wire.CodeNotAvailable
	}
	return err
}

func add(args *skel.CmdArgs) error {
	req, conf, err := parse("ADD", args)
	if err != nil {
		return err
	}
	netns, err := openNetns(args.Netns)
	if err != nil {
		return err
	}
	defer netns.Close()
	res, err := call(req, conf, netns)
	if err != nil {
		return err
	}
	out, err := result(res)
	if err != nil {
		return fail(wire.CodeDecode, "the agent's answer: %v", err)
	}
	return types.PrintResult(out, conf.CNIVersion)
}

// openNetns opens the pod's network namespace and makes sure that it is one, and not our own.
func openNetns(path string) (*os.File, error) {
	// O_NONBLOCK: a path that leads to a FIFO must not hang us.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fail(wire.CodeInvalidNetns, "CNI_NETNS %q cannot be opened: %v", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	if err := wire.IsNetns(f); err != nil {
		f.Close()
		return nil, fail(wire.CodeInvalidNetns, "CNI_NETNS %q %v", path, err)
	}
	var theirs, ours unix.Stat_t
	if unix.Fstat(fd, &theirs) == nil && unix.Stat("/proc/self/ns/net", &ours) == nil && theirs.Dev == ours.Dev && theirs.Ino == ours.Ino {
		f.Close()
		return nil, fail(wire.CodeInvalidNetns, "CNI_NETNS %q is the host's own network namespace", path)
	}
	return f, nil
}

// result renders the agent's answer in the newest form; the CNI library converts it to the version
// that the runtime asked for.
func result(r *wire.Result) (*types100.Result, error) {
	if r == nil {
		return nil, errors.New("no result")
	}
	out := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for _, i := range []wire.Interface{r.Host, r.Pod} {
		out.Interfaces = append(out.Interfaces, &types100.Interface{Name: i.Name, Mac: i.MAC, Mtu: i.MTU, Sandbox: i.Sandbox})
	}
	for _, a := range r.Addrs {
		p, err := netip.ParsePrefix(a.Addr)
		if err != nil {
			return nil, err
		}
		gw, err := netip.ParseAddr(a.Gateway)
		if err != nil {
			return nil, err
		}
		bits := p.Addr().BitLen()
		out.IPs = append(out.IPs, &types100.IPConfig{Interface: types100.Int(1), Gateway: gw.AsSlice(),
			Address: net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), bits)}})
		out.Routes = append(out.Routes,
			&types.Route{Dst: net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}, GW: gw.AsSlice()})
	}
	return out, nil
}
