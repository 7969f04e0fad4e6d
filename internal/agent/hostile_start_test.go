// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/agent/apiserver"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
)

// inNamespace runs a test once more, in a process in a network namespace of its own, and reports
// whether this is that process.
func inNamespace(t *testing.T) bool {
	t.Helper()
	return nettest.Isolated(t, hostile.OutputVariable+"=")
}

// beyond makes the interface eth0, whose other end is in another namespace with a listener on its
// address, and returns that.
func beyond(t *testing.T, own, far netip.Prefix) net.Listener {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "far0"}); err != nil {
		t.Fatal(err)
	}
	up := func(name string, p netip.Prefix) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		at := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
		return errors.Join(netlink.LinkSetUp(l), netlink.AddrAdd(l, at))
	}
	peer, err := netlink.LinkByName("far0")
	if err != nil {
		t.Fatal(err)
	}
	beyond := nettest.New(t, "the other namespace")
	if err := netlink.LinkSetNsFd(peer, beyond.FD); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	beyond.Do(t, "listen", func() (err error) {
		if err = up("far0", far); err == nil {
			l, err = net.Listen("tcp", netip.AddrPortFrom(far.Addr(), 6443).String())
		}
		return err
	})
	if err := up("eth0", own); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestHostileRouteToAPI: an agent that starts where a route by weir0 leads to the API server's
// network, and one to its address, gets there, by the configured cluster IP too; the routes of pods
// and Services stay.
func TestHostileRouteToAPI(t *testing.T) {
	const attack = "a pool's routes by weir0 cover the API server when an agent starts that knows it by its cluster IP"
	hostile.Record(t, attack, hostile.Operator, hostile.EBPF, hostile.Both)
	hostile.Record(t, attack, hostile.Operator, hostile.NFTables, hostile.Both)
	if !inNamespace(t) {
		return
	}
	for _, c := range []struct{ own, far, wide, service, pods string }{
		{"192.0.2.8/24", "192.0.2.70/24", "192.0.2.64/26", "10.96.0.0/16", "10.244.0.0/16"},
		{"2001:db8:2::8/64", "2001:db8:2::70/64", "2001:db8:2::/80", "fd00:96::/112", "fd00:10::/64"},
	} {
		t.Run(c.far, func(t *testing.T) {
			l := beyond(t, netip.MustParsePrefix(c.own), netip.MustParsePrefix(c.far))
			defer l.Close()
			attrs := netlink.NewLinkAttrs()
			attrs.Name = kernel.HostDevice
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: kernel.HostDevice + "p"}); err != nil {
				t.Fatal(err)
			}
			host, err := netlink.LinkByName(kernel.HostDevice)
			if err != nil {
				t.Fatal(err)
			}
			if err := netlink.LinkSetUp(host); err != nil {
				t.Fatal(err)
			}
			defer func() {
				eth0, err := netlink.LinkByName("eth0")
				if err := errors.Join(err, netlink.LinkDel(host), netlink.LinkDel(eth0)); err != nil {
					t.Error(err)
				}
			}()
			far := netip.MustParsePrefix(c.far).Addr()
			for _, p := range []netip.Prefix{netip.MustParsePrefix(c.wide), netip.PrefixFrom(far, far.BitLen()), netip.MustParsePrefix(c.service), netip.MustParsePrefix(c.pods)} {
				r := &netlink.Route{LinkIndex: host.Attrs().Index, Scope: netlink.SCOPE_LINK, Protocol: kernel.RouteProtocol,
					Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
				if err := netlink.RouteAdd(r); err != nil {
					t.Fatalf("%s: %v", p, err)
				}
			}
			file := filepath.Join(t.TempDir(), "apiservers.json")
			if err := os.WriteFile(file, []byte(`["`+l.Addr().String()+`"]`), 0o600); err != nil {
				t.Fatal(err)
			}
			s := apiserver.NewDialer(file, slog.New(slog.DiscardHandler))
			s.FreeRoutes("")
			began := time.Now()
			clusterIP := netip.AddrPortFrom(netip.MustParsePrefix(c.service).Addr().Next(), 443).String()
			for range 2 { // at once, once the address that answers is known
				conn, err := s.Dial(context.Background(), "tcp", clusterIP)
				if err != nil {
					t.Fatal(err)
				}
				conn.Close()
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the API server was reached after %v", took)
			}
			routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: host.Attrs().Index, Protocol: kernel.RouteProtocol},
				netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
			if err != nil || len(routes) != 2 {
				t.Errorf("routes that are left: %v (%v), want those of pods and Services", routes, err)
			}
		})
	}
}
