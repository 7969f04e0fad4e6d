package nft

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// TestDistrust: an interface gets back what it had before, once, and what somebody else set meanwhile stays.
func TestDistrust(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, done := t.TempDir(), make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = trustAndDistrust(dir)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func trustAndDistrust(dir string) error {
	is := func(name string, want int) error {
		got, err := kernel.Sysctl("net", "ipv4", "conf", name, "accept_local")
		if err == nil && got != want {
			err = fmt.Errorf("accept_local of %s is %d, want %d", name, got, want)
		}
		return err
	}
	index := map[string]int{}
	for _, name := range []string{"plain", "theirs", "other"} {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}); err != nil {
			return err
		}
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		index[name] = l.Attrs().Index
	}
	if err := setAcceptLocal("theirs", 1); err != nil { // before us
		return err
	}
	for range 2 { // the second time nothing is new
		for name, i := range index {
			if err := errors.Join(trustLink(i, dir), is(name, 1)); err != nil {
				return err
			}
		}
	}
	if err := setAcceptLocal("other", 0); err != nil { // somebody else, meanwhile
		return err
	}
	if err := errors.Join(Distrust(dir), is("plain", 0), is("theirs", 1), is("other", 0)); err != nil {
		return err
	}
	if err := setAcceptLocal("plain", 1); err != nil {
		return err
	}
	return errors.Join(Distrust(dir), is("plain", 1)) // nothing of it is ours any more
}
