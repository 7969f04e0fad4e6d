// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stamped is a connection that reports when the kernel had what was read last (SO_TIMESTAMPNS,
// socket(7)): that is what a data plane does, and not when a process that waited for a CPU came to
// read it.
type stamped struct {
	net.Conn
	raw syscall.RawConn
	at  time.Time
}

func stamp(c net.Conn) (*stamped, error) {
	sc := c.(syscall.Conn)
	if err := askStamps(sc); err != nil {
		return nil, err
	}
	raw, err := sc.SyscallConn()
	return &stamped{Conn: c, raw: raw}, err
}

// askStamps lets the kernel report when it had what a socket reads.
func askStamps(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if ctrlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) }); ctrlErr != nil {
		return ctrlErr
	}
	return os.NewSyscallError("setsockopt SO_TIMESTAMPNS", err)
}

// Read implements net.Conn.
func (s *stamped) Read(b []byte) (n int, err error) {
	oob, oobn := make([]byte, 64), 0
	waitErr := s.raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, _, _, err = unix.Recvmsg(int(fd), b, oob, unix.MSG_DONTWAIT)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	switch {
	case waitErr != nil:
		return 0, waitErr
	case err != nil:
		return 0, os.NewSyscallError("recvmsg", err)
	case n == 0:
		return 0, io.EOF
	}
	s.at = stampOf(oob[:oobn])
	return n, nil
}

// stampOf is the time in what came alongside a message; without one, now.
func stampOf(oob []byte) time.Time {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Now()
	}
	for _, m := range all {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Now()
}
