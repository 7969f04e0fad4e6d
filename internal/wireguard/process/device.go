// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/kernel"
)

// running is a device of wireguard-go.
type running struct {
	Device
	log   *slog.Logger
	dev   *device.Device
	calls net.Listener
	saved string // where what it was given is kept
}

// open makes a device, or takes over the TUN device that an earlier process left, with what that
// was given.
func open(d Device, stateDir string, log *slog.Logger) (*running, error) {
	if _, err := kernel.FindDevice(d.Name); err != nil {
		return nil, err
	}
	t, err := tun.CreateTUN(d.Name, d.MTU)
	if err != nil {
		return nil, fmt.Errorf("making the TUN device %s: %w", d.Name, err)
	}
	if err := keep(t, d.Name); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	r := &running{Device: d, log: log.With("device", d.Name), saved: filepath.Join(stateDir, d.Name+".conf")}
	many, err := newBatched(t)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	var given tun.Device = many
	atOnce, err := newTunnelled(many)
	switch {
	case err == nil:
		given = atOnce
	case errors.Is(err, errors.ErrUnsupported):
		r.log.Info("the kernel hands over packets of tunnels one by one: it is older than Linux 6.17")
	default:
		return nil, errors.Join(err, t.Close())
	}
	r.dev = device.NewDevice(given, conn.NewDefaultBind(), &device.Logger{
		Verbosef: func(format string, args ...any) { r.log.Debug(fmt.Sprintf(format, args...)) },
		Errorf:   func(format string, args ...any) { r.log.Error(fmt.Sprintf(format, args...)) },
	})
	if err := r.restore(); err != nil {
		r.log.Error("a device begins without what it was given before", "error", err)
	}
	if err := r.listen(); err != nil {
		r.dev.Close()
		return nil, err
	}
	r.log.Info("a device of WireGuard is there", "mtu", d.MTU)
	return r, nil
}

// keep lets a TUN device outlive its process and marks it as ours.
func keep(t tun.Device, name string) error {
	raw, err := t.File().SyscallConn()
	if err != nil {
		return fmt.Errorf("reaching the TUN device %s: %w", name, err)
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.IoctlSetInt(int(fd), unix.TUNSETPERSIST, 1) })
	if err = errors.Join(err, set); err != nil {
		return fmt.Errorf("keeping the TUN device %s: %w", name, err)
	}
	if l, err := kernel.FindDevice(name); err == nil && l != nil {
		return nil // an earlier process did, and the agent after it
	}
	return kernel.DressDevice(name)
}

// listen answers who configures the device, at the socket where WireGuard's tools look for it.
func (r *running) listen() error {
	file, err := ipc.UAPIOpen(r.Name)
	if err != nil {
		return fmt.Errorf("making the socket of %s: %w", r.Name, err)
	}
	if r.calls, err = ipc.UAPIListen(r.Name, file); err != nil {
		return fmt.Errorf("listening at the socket of %s: %w", r.Name, err)
	}
	go func() {
		for {
			c, err := r.calls.Accept()
			if err != nil {
				return
			}
			go r.answer(c)
		}
	}()
	return nil
}

// answer serves one caller, and keeps what it gave.
func (r *running) answer(c net.Conn) {
	r.dev.IpcHandle(&noting{Conn: c, done: r.save})
}

// noting is a caller's connection: done is called before a caller hears that its change was made.
type noting struct {
	net.Conn
	done func()
	sets bool
}

func (n *noting) Read(b []byte) (int, error) {
	k, err := n.Conn.Read(b)
	n.sets = n.sets || strings.HasPrefix(string(b[:k]), "set=")
	return k, err
}

func (n *noting) Write(b []byte) (int, error) {
	if n.sets && strings.HasPrefix(string(b), "errno=") {
		n.done()
	}
	return n.Conn.Write(b)
}

// configured are the lines of WireGuard's cross-platform interface that configure; others tell what
// happened.
var configured = map[string]bool{"private_key": true, "listen_port": true, "fwmark": true, "public_key": true, "preshared_key": true,
	"endpoint": true, "persistent_keepalive_interval": true, "allowed_ip": true, "protocol_version": true}

// save keeps what the device was given. It is done by one caller at a time.
func (r *running) save() {
	text, err := r.dev.IpcGet()
	if err == nil {
		var out strings.Builder
		for line := range strings.Lines(text) {
			if key, _, _ := strings.Cut(line, "="); configured[key] {
				out.WriteString(line)
			}
		}
		err = statefile.Write(r.saved, []byte(out.String()), 0o600)
	}
	if err != nil {
		r.log.Error("what the device was given is not kept; after a restart the agent has to give it again", "error", err)
	}
}

// restore gives the device what an earlier process kept, and brings it up.
func (r *running) restore() error {
	f, err := os.Open(r.saved)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading what the device was given: %w", err)
	}
	defer f.Close()
	if err := r.dev.IpcSetOperation(io.MultiReader(strings.NewReader("replace_peers=true\n"), bufio.NewReader(f))); err != nil {
		return fmt.Errorf("giving the device what it was given before: %w", err)
	}
	return nil
}

// close ends the device; remove says that it is not wanted any more.
func (r *running) close(remove bool) {
	r.calls.Close()
	r.dev.Close()
	if remove {
		os.Remove(r.saved)
		if l, err := kernel.FindDevice(r.Name); err == nil && l != nil {
			if err := netlink.LinkDel(l); err != nil {
				r.log.Error("a TUN device that is not wanted stays", "error", err)
			}
		}
	}
}
