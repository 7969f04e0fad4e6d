// SPDX-License-Identifier: Apache-2.0

package names

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// element is one of Told that is to be written, or removed.
type element struct {
	six     bool
	remove  bool
	key     string
	comment string
	left    time.Duration
}

// keyOf is the key of an element as the kernel has it.
func keyOf(pod, addr netip.Addr, number uint32) string {
	return string(binary.NativeEndian.AppendUint32(append(pod.AsSlice(), addr.AsSlice()...), number))
}

// The comment of an element says which interface the pod has, and the whole number of the pattern: a
// driver that starts knows by it whether an element is about what its state has.
func commentOf(ifindex int, name nodestate.NameID) string {
	return fmt.Sprintf("%d %016x", ifindex, uint64(name))
}

func readComment(text string) (ifindex int, name nodestate.NameID, ok bool) {
	a, b, found := strings.Cut(text, " ")
	i, err := strconv.Atoi(a)
	n, err2 := strconv.ParseUint(b, 16, 64)
	return i, nodestate.NameID(n), found && err == nil && err2 == nil
}

// writer writes elements: by netlink, as an answer waits for it. It is for one goroutine at a time.
type writer struct {
	fd      int
	seq     uint32
	commits uint32 // since the start
	buf     []byte
}

func newWriter() (*writer, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a socket of nftables: %w", err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("setting up a socket of nftables: %w", err)
	}
	return &writer{fd: fd, buf: make([]byte, 1<<16)}, nil
}

func (w *writer) close() { unix.Close(w.fd) }

const (
	batchMost = 500 // elements of a transaction
	triesMost = 5
	// linux/netfilter/nf_tables.h
	listTable, listSet, listElements = 1, 2, 3
	listElement, dataValue           = 1, 1
)

// write writes elements, those of a transaction at once. What is to be removed and is not there any
// more is no error: it was over.
func (w *writer) write(all []element) error {
	var errs []error
	for _, six := range []bool{false, true} {
		var of []element
		for _, e := range all {
			if e.six == six {
				of = append(of, e)
			}
		}
		for len(of) > 0 {
			n := min(batchMost, len(of))
			errs = append(errs, w.transaction(six, of[:n]))
			of = of[n:]
		}
	}
	return errors.Join(errs...)
}

// transaction has the kernel take all elements, or none: it is tried again without the removals that
// the kernel did not know.
func (w *writer) transaction(six bool, all []element) error {
	skip := map[int]bool{}
	for range triesMost {
		failed, err := w.try(six, all, skip)
		if err != nil {
			return fmt.Errorf("writing what pods were told: %w", err)
		}
		if len(failed) == 0 {
			w.commits++
			return nil
		}
		for i, code := range failed {
			if i < 0 || !all[i].remove || code != unix.ENOENT {
				return fmt.Errorf("writing what pods were told: %w", code)
			}
			skip[i] = true
		}
	}
	return errors.New("writing what pods were told: elements end while they are written")
}

// try sends a transaction. failed are the elements that the kernel did not take, or -1.
func (w *writer) try(six bool, all []element, skip map[int]bool) (failed map[int]unix.Errno, err error) {
	family := byte(unix.NFPROTO_IPV4)
	if six {
		family = unix.NFPROTO_IPV6
	}
	var out []byte
	begin := w.seq + 1
	add := func(kind, flags uint16, of byte, resource uint16, body []byte) {
		w.seq++
		out = binary.NativeEndian.AppendUint32(out, uint32(unix.SizeofNlMsghdr+nl.SizeofNfgenmsg+len(body)))
		out = binary.NativeEndian.AppendUint16(out, kind)
		out = binary.NativeEndian.AppendUint16(out, flags|unix.NLM_F_REQUEST)
		out = binary.NativeEndian.AppendUint32(out, w.seq)
		out = binary.NativeEndian.AppendUint32(out, 0)
		out = append(out, of, 0)
		out = append(binary.BigEndian.AppendUint16(out, resource), body...)
	}
	sent := map[uint32]int{}
	add(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	for i, e := range all {
		if skip[i] {
			continue
		}
		kind, flags := uint16(unix.NFT_MSG_NEWSETELEM), uint16(unix.NLM_F_CREATE)
		if e.remove {
			kind, flags = unix.NFT_MSG_DELSETELEM, 0
		}
		add(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags|unix.NLM_F_ACK, family, 0, e.attributes())
		sent[w.seq] = i
	}
	add(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	if len(sent) == 0 {
		return nil, nil
	}
	if err := unix.Sendto(w.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	failed = map[int]unix.Errno{}
	for left := len(sent); left > 0; {
		n, _, err := unix.Recvfrom(w.fd, w.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for b := w.buf[:n]; len(b) >= 20; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < 20 || size > len(b) {
				break
			}
			seq := binary.NativeEndian.Uint32(b[8:])
			if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR && int32(seq-begin) >= 0 {
				code := -int32(binary.NativeEndian.Uint32(b[16:]))
				i, is := sent[seq]
				if is {
					delete(sent, seq)
					left--
				} else {
					i = -1
				}
				if code != 0 {
					failed[i] = unix.Errno(code)
				}
				if !is && code != 0 { // of the transaction as a whole: no more comes
					left = 0
				}
			}
			b = b[min((size+3)&^3, len(b)):]
		}
	}
	return failed, nil
}

// attributes are those of a message about an element.
func (e element) attributes() []byte {
	key := nl.NewRtAttr(unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, nil)
	key.AddRtAttr(dataValue, []byte(e.key))
	one := nl.NewRtAttr(listElement|unix.NLA_F_NESTED, nil)
	one.AddChild(key)
	if !e.remove {
		one.AddRtAttr(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(max(e.left.Milliseconds(), 1))))
		one.AddRtAttr(unix.NFTA_SET_ELEM_USERDATA, userdata.AppendString(nil, userdata.NFTNL_UDATA_SET_ELEM_COMMENT, e.comment))
	}
	list := nl.NewRtAttr(listElements|unix.NLA_F_NESTED, nil)
	list.AddChild(one)
	out := nl.NewRtAttr(listTable, nl.ZeroTerminated(table.Name)).Serialize()
	out = append(out, nl.NewRtAttr(listSet, nl.ZeroTerminated(Told)).Serialize()...)
	return append(out, list.Serialize()...)
}

// found is an element that is in the kernel.
type found struct {
	pod, addr netip.Addr
	number    uint32
	comment   string
	left      time.Duration
}

// read reads Told of a family; nothing where it is not there, or of another layout.
func read(conn *nftables.Conn, f table.Family) (out []found, err error) {
	_, all, err := table.Elements(conn, f, Told)
	size := 4
	if f.Six {
		size = 16
	}
	for _, e := range all {
		if len(e.Key) != 2*size+4 {
			continue
		}
		p, _ := netip.AddrFromSlice(e.Key[:size])
		a, _ := netip.AddrFromSlice(e.Key[size : 2*size])
		out = append(out, found{p, a, binary.NativeEndian.Uint32(e.Key[2*size:]), e.Comment, e.Expires})
	}
	return out, err
}
