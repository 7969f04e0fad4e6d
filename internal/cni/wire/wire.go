// SPDX-License-Identifier: Apache-2.0

// Package wire is what the CNI plugin and the agent say to each other: over a unix socket one
// request and one response, each a header of 8 bytes ("WCNI", then the length of the body as a
// big-endian uint32) and a JSON body. The descriptor of the pod's network namespace travels with
// the request's header (SCM_RIGHTS), so that the agent needs no view of the runtime's mounts.
package wire

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Version of the protocol. An agent answers a request of another version with an error.
const Version = 1

// DefaultSocket is where the agent listens.
const DefaultSocket = "/run/weir/cni.sock"

// MaxBody bounds a body, bytes.
const MaxBody = 1 << 20

const magic = "WCNI"

// Attachment names an interface of a container (CNI 1.1, cni.dev/valid-attachments).
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// Request is a CNI call. Command is ADD, DEL, CHECK, GC or STATUS.
type Request struct {
	Version     int    `json:"version"`
	Command     string `json:"command"`
	Timeout     int64  `json:"timeoutMs"` // how long the caller waits
	Network     string `json:"network"`
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifname,omitempty"`
	Netns       string `json:"netns,omitempty"` // path, as the runtime gave it; for results and messages
	Namespace   string `json:"namespace,omitempty"`
	Pod         string `json:"pod,omitempty"`
	UID         string `json:"uid,omitempty"`

	MTU    int      `json:"mtu,omitempty"`
	IPv4   bool     `json:"ipv4,omitempty"`
	IPv6   bool     `json:"ipv6,omitempty"`
	Pools4 []string `json:"pools4,omitempty"`
	Pools6 []string `json:"pools6,omitempty"`

	// Addrs are the addresses that the previous result names, with prefix lengths (CHECK).
	Addrs []string `json:"addrs,omitempty"`
	// Valid are the attachments to keep (GC).
	Valid []Attachment `json:"valid,omitempty"`
}

// Interface of a Result. Sandbox is empty on the host.
type Interface struct {
	Name    string `json:"name"`
	MAC     string `json:"mac"`
	MTU     int    `json:"mtu"`
	Sandbox string `json:"sandbox,omitempty"`
}

// Result of an ADD: the host's interface, the pod's interface, and the addresses of the latter.
type Result struct {
	Host  Interface `json:"host"`
	Pod   Interface `json:"pod"`
	Addrs []Addr    `json:"addrs"`
}

// Addr is an address with its gateway, as text.
type Addr struct {
	Addr    string `json:"addr"` // with prefix length
	Gateway string `json:"gateway"`
}

// Error carries a CNI error code (CNI specification, section "Error"; from 100 on they are Weir's).
type Error struct {
	Code    uint   `json:"code"`
	Message string `json:"message"`
	Details string `json:"details,omitempty"`

	// Starting: the agent has not finished its start, and the same call may succeed in a moment.
	Starting bool `json:"starting,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Error codes. Those from 100 on are ours.
const (
	CodeUnknownContainer = 3
	CodeInvalidEnv       = 4
	CodeIO               = 5
	CodeDecode           = 6
	CodeInvalidConfig    = 7
	CodeInvalidNetns     = 8
	CodeTryAgain         = 11
	CodeNotAvailable     = 50
	CodeLimited          = 51
	CodeAddress          = 100 // no address can be given
	CodeAnnotation       = 101 // an annotation of the pod is invalid
	CodeInterface        = 102 // the interface cannot be made, or is not as it should be
	CodeEnforce          = 103 // the data plane did not take the interface
)

// Response answers a request.
type Response struct {
	Version int     `json:"version"`
	Result  *Result `json:"result,omitempty"`
	Error   *Error  `json:"error,omitempty"`
}

// Call sends a request to the agent at socket and waits for the answer. An error of type *Error
// came from the agent; others mean that it could not be reached or did not answer in time.
func Call(ctx context.Context, socket string, req Request, netns *os.File) (*Result, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return nil, errors.New("a call to the agent needs a deadline")
	}
	req.Version = Version
	req.Timeout = time.Until(deadline).Milliseconds()
	d := net.Dialer{Timeout: 2 * time.Second}
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	conn := c.(*net.UnixConn)
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if err := Write(conn, req, netns); err != nil {
		return nil, fmt.Errorf("send the request: %w", err)
	}
	var resp Response
	if _, err := read(conn, &resp, false); err != nil {
		return nil, fmt.Errorf("wait for the answer: %w", err)
	}
	if resp.Error != nil {
		return nil, resp.Error
	}
	if resp.Version != Version {
		return nil, fmt.Errorf("the agent speaks version %d of the protocol, this plugin version %d: they are of different releases", resp.Version, Version)
	}
	return resp.Result, nil
}

// Write sends a message, with a file's descriptor when f is not nil.
func Write(conn *net.UnixConn, message any, f *os.File) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > MaxBody {
		return fmt.Errorf("the message has %d bytes, at most %d are possible", len(body), MaxBody)
	}
	head := append([]byte(magic), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(head[4:], uint32(len(body)))
	var rights []byte
	if f != nil {
		rights = unix.UnixRights(int(f.Fd()))
	}
	if _, _, err := conn.WriteMsgUnix(head, rights, nil); err != nil {
		return err
	}
	_, err = conn.Write(body)
	return err
}

// ReadRequest reads a request and the file that came with it, nil when there was none. The caller
// closes the file.
func ReadRequest(conn *net.UnixConn) (Request, *os.File, error) {
	var req Request
	f, err := read(conn, &req, true)
	if err != nil {
		return Request{}, nil, err
	}
	return req, f, nil
}

func read(conn *net.UnixConn, into any, rights bool) (*os.File, error) {
	head, f, err := readHead(conn, rights)
	if err != nil {
		return nil, err
	}
	err = readBody(conn, head, into)
	if err != nil && f != nil {
		f.Close()
		f = nil
	}
	return f, err
}

func readBody(conn *net.UnixConn, head []byte, into any) error {
	if string(head[:4]) != magic {
		return errors.New("the message does not begin like one of this protocol")
	}
	size := binary.BigEndian.Uint32(head[4:])
	if size > MaxBody {
		return fmt.Errorf("the message announces %d bytes, at most %d are possible", size, MaxBody)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(conn, body); err != nil {
		return fmt.Errorf("the message is truncated: %w", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode the message: %w", err)
	}
	return nil
}

func readHead(conn *net.UnixConn, rights bool) ([]byte, *os.File, error) {
	head := make([]byte, 8)
	oob := make([]byte, unix.CmsgSpace(4*4))
	if !rights {
		_, err := io.ReadFull(conn, head)
		return head, nil, err
	}
	n, oobn, _, _, err := conn.ReadMsgUnix(head, oob)
	if err != nil {
		return nil, nil, err
	}
	f := firstFile(oob[:oobn])
	if n < len(head) {
		if _, err := io.ReadFull(conn, head[n:]); err != nil {
			if f != nil {
				f.Close()
			}
			return nil, nil, fmt.Errorf("the message is truncated: %w", err)
		}
	}
	return head, f, nil
}

// firstFile takes the descriptors out of control messages: the first is kept, others are closed.
func firstFile(oob []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var f *os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			if f == nil {
				f = os.NewFile(uintptr(fd), "netns")
			} else {
				unix.Close(fd)
			}
		}
	}
	return f
}

// IsNetns reports whether f is a network namespace (ioctl_ns(2), NS_GET_NSTYPE since Linux 4.11).
func IsNetns(f *os.File) error {
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil {
		return errors.New("is not a namespace")
	}
	if kind != unix.CLONE_NEWNET {
		return errors.New("is a namespace, but not a network namespace")
	}
	return nil
}
