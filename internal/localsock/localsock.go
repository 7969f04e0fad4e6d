// SPDX-License-Identifier: Apache-2.0

// Package localsock makes the unix sockets by which an agent is asked on its own machine.
package localsock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Listen makes the socket at path for root only, with mode 0600. It takes the place of an earlier
// one in one step, so that who calls finds either the old process or this one; what a killed
// process left is replaced too. Something at path that is not a socket is an error.
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
	cred, err := peer(conn)
	if err != nil {
		return err
	}
	if cred.Uid != 0 {
		return fmt.Errorf("the caller has user id %d, only root may call", cred.Uid)
	}
	return nil
}

// ListenerPID is the process that listens at the socket path, as this process's PID namespace
// numbers it: 0 where it runs in another one, such as that of another container (SO_PEERCRED,
// unix(7)).
func ListenerPID(path string) (int, error) {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	cred, err := peer(conn.(*net.UnixConn))
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// peer is who connected to this process, or who listens where this process connected to.
func peer(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, cerr); err != nil {
		return nil, fmt.Errorf("read the credentials of a socket's peer: %w", err)
	}
	return cred, nil
}
