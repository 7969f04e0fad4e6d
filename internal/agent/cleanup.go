// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/agent/chain"
	"github.com/weir-net/weir/internal/agent/conflist"
	"github.com/weir-net/weir/internal/agent/fromcalico"
	"github.com/weir-net/weir/internal/agent/fromcalico/remains"
	"github.com/weir-net/weir/internal/agent/nodelock"
	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/kernel"
)

// CleanUpOptions say what of a node is removed.
type CleanUpOptions struct {
	StateDir, RunDir, BPFFS, CNIConfDir string
	CNIBin                              string // path of the CNI plugin; empty = it stays
	// KeepPods leaves pods their interfaces, which another network plugin carries from now on: it
	// has to be in force already.
	KeepPods bool
	Log      *slog.Logger
}

// ErrRunning says that an agent runs on the node.
var ErrRunning = errors.New("an agent runs on this node: end it first (kubectl -n kube-system delete ds weir-node, or weir uninstall --clean-nodes)")

// CleanUp removes from the node what agents made: programs with their links and pins, tables of
// nftables, routes and routing rules, devices, files, and the network of pods that are still there,
// which no policy would cover any more. Settings of the kernel become what they were where that was
// noted. It goes on after an error, may be repeated, and needs no API server.
func CleanUp(ctx context.Context, o CleanUpOptions) error {
	if c, err := net.DialTimeout("unix", filepath.Join(o.RunDir, filepath.Base(wire.DefaultSocket)), time.Second); err == nil {
		c.Close()
		return ErrRunning
	}
	unlock, err := lockNode(o.RunDir)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	step := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
			return
		}
		o.Log.Info("done", "step", what)
	}
	step("removing the network configuration", errors.Join(removeFiles(filepath.Join(o.CNIConfDir, conflist.Name)), fromcalico.Forget(o.CNIConfDir)))
	if o.KeepPods {
		step("leaving the interfaces of pods, and routes, to another plugin", errors.Join(fromcalico.Leave(), remains.HandBack()))
	} else { // Pods go first: none is reached, or reaches anybody, without its policy.
		step("removing the interfaces of pods", removeInterfaces(func(l *netlink.LinkAttrs) bool { return strings.HasPrefix(l.Alias, kernel.DeviceAlias+":") }))
	}
	step("having the kernel track connections of other pods again", trackAgain(o.Log))
	step("removing programs", ebpf.Remove(o.BPFFS))
	step("removing tables, routes and routing rules", errors.Join(nft.Remove(ctx), fib.Remove()))
	step("restoring settings of the kernel", nft.Restore(o.StateDir))
	step("releasing connection tracking", errors.Join(conntrack.Release(), conntrack.Unkeep(false)))
	step("removing devices", removeInterfaces(func(l *netlink.LinkAttrs) bool { return l.Alias == kernel.DeviceAlias }))
	files := []string{o.BPFFS}
	if o.CNIBin != "" {
		files = append(files, o.CNIBin)
	}
	step("removing files", removeFiles(files...))
	if len(errs) == 0 { // what is noted there is needed for another attempt
		step("removing what survives a reboot", removeFiles(o.StateDir))
	}
	step("removing the lock", removeFiles(o.RunDir)) // an agent may start from now on
	return errors.Join(errs...)
}

// trackAgain prepares connection tracking for packets of pods that another CNI plugin has made,
// which programs carried until now.
func trackAgain(log *slog.Logger) error {
	w, err := chain.New(log)
	if err != nil {
		return err
	}
	return conntrack.LoosenAll(w.Leads)
}

// removeInterfaces deletes interfaces. The other end of a pair goes with the first.
func removeInterfaces(ours func(*netlink.LinkAttrs) bool) error {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		if !ours(l.Attrs()) {
			continue
		}
		if err := netlink.LinkDel(l); err != nil && !gone(l.Attrs().Index) {
			errs = append(errs, fmt.Errorf("removing interface %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

func gone(index int) bool {
	_, err := netlink.LinkByIndex(index)
	return errors.As(err, new(netlink.LinkNotFoundError))
}

// removeFiles removes files and folders with what is in them. A folder that is a mount of its own,
// as in a container, is emptied.
func removeFiles(paths ...string) error {
	var errs []error
	for _, p := range paths {
		err := os.RemoveAll(p)
		if err == nil {
			continue
		}
		// RemoveAll gives up at once where what the mount is on is read-only.
		inside, _ := os.ReadDir(p)
		for _, e := range inside {
			_ = os.RemoveAll(filepath.Join(p, e.Name()))
		}
		left, readErr := os.ReadDir(p)
		if errors.Is(readErr, fs.ErrNotExist) || readErr == nil && len(left) == 0 {
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lockNode takes the lock of the node, or returns ErrRunning where an agent, or another clean-up,
// has it: nothing is removed under an agent that has started and does not answer yet.
func lockNode(dir string) (unlock func(), err error) {
	unlock, err = nodelock.TryAcquire(dir)
	if errors.Is(err, nodelock.ErrHeld) {
		return nil, ErrRunning
	}
	return unlock, err
}
