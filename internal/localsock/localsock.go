// Package localsock makes the unix sockets by which an agent is asked on its own machine.
package localsock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Listen makes the socket at path for root only, with mode 0600. It takes the place of an earlier one in one step, so
// that who calls finds either the old process or this one; what a killed process left is replaced too. Something at
// path that is not a socket is an error.
func Listen(path string) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the socket %s: %w", path, err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("%s exists and is not a socket: move it away", path)
	}
	temp := filepath.Join(dir, fmt.Sprintf(".%d-%s", os.Getpid(), filepath.Base(path)))
	os.Remove(temp)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at the socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // by then the name may be another process's
	if err := errors.Join(os.Chmod(temp, 0o600), os.Rename(temp, path)); err != nil {
		l.Close()
		os.Remove(temp)
		return nil, fmt.Errorf("put the socket at %s: %w", path, err)
	}
	return l, nil
}

// FromRoot checks that the caller is root, by the kernel's word.
func FromRoot(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if cerr != nil {
		return fmt.Errorf("read the caller's credentials: %w", cerr)
	}
	if cred.Uid != 0 {
		return fmt.Errorf("the caller has user id %d, only root may call", cred.Uid)
	}
	return nil
}
