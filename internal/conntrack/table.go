// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// Table is the table of tracked connections of the network namespace in which it was opened. It is
// for one goroutine.
type Table struct {
	sock *nl.SocketHandle
	zone uint16
}

// In is the part of the table that is of a zone: another connection may have the same tuples there.
// Of a Table that was opened it is zone 0.
func (t *Table) In(zone uint16) *Table { return &Table{t.sock, zone} }

// Open opens the table. The kernel needs nf_conntrack_netlink.
func Open() (*Table, error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening the table of tracked connections: %w", err)
	}
	patience := unix.Timeval{Sec: 30}
	if err := errors.Join(s.SetSendTimeout(&patience), s.SetReceiveTimeout(&patience)); err != nil {
		s.Close()
		return nil, fmt.Errorf("opening the table of tracked connections: %w", err)
	}
	return &Table{sock: &nl.SocketHandle{Socket: s}}, nil
}

// Close lets go of the table.
func (t *Table) Close() { t.sock.Close() }

func (t *Table) request(kind, flags int, six bool) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: t.sock}
	family := uint8(unix.AF_INET)
	if six {
		family = unix.AF_INET6
	}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return req
}

// Each hands on every connection of a family, those of other zones too. What changes meanwhile may
// be missing, or there twice.
func (t *Table) Each(six bool, f func(Entry)) error {
	return dump(t, nl.IPCTNL_MSG_CT_GET, six, decode, f)
}

// dump hands on what the table answers to a message of that kind, for all connections of a family.
func dump[E any](t *Table, kind int, six bool, decode func([]byte) (E, error), f func(E)) error {
	var bad error
	err := t.request(kind, unix.NLM_F_DUMP, six).ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		e, err := decode(msg)
		if err != nil {
			bad = err
		} else {
			f(e)
		}
		return true
	})
	if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) {
		return fmt.Errorf("listing tracked connections: %w", err)
	}
	return bad
}

// Room is how many connections may be added: until the table of this network namespace is filled to
// nine tenths.
func Room() (int, error) {
	var numbers [2]int
	for i, name := range []string{"nf_conntrack_max", "nf_conntrack_count"} {
		n, err := kernel.Sysctl("net", "netfilter", name)
		if errors.Is(err, fs.ErrNotExist) {
			return math.MaxInt, nil // nothing is tracked yet
		}
		if err != nil {
			return 0, fmt.Errorf("looking for room in the table of tracked connections: %w", err)
		}
		numbers[i] = n
	}
	return room(numbers[0], numbers[1]), nil
}

func room(most, count int) int {
	if most == 0 {
		return math.MaxInt // there is no limit
	}
	return max(most/10*9-count, 0)
}

// named is a request about the connection that a tuple belongs to.
func (t *Table) named(kind, flags int, of Tuple) *nl.NetlinkRequest {
	req := t.request(kind, flags|unix.NLM_F_ACK, of.Src.Is6())
	req.AddRawData(appendZone(appendTuple(nil, nl.CTA_TUPLE_ORIG, of), t.zone))
	return req
}

// Create adds a connection, in the zone of this part of the table. The error is unix.EEXIST when
// one of its tuples belongs to another.
func (t *Table) Create(e Entry) error {
	req := t.request(nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, e.Orig.Src.Is6())
	e.Zone = t.zone
	req.AddRawData(e.encode())
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return fmt.Errorf("adding the connection %s: %w", e.Orig, err)
	}
	return nil
}

// Find returns the connection that a tuple belongs to, in either direction.
func (t *Table) Find(of Tuple) (Entry, bool, error) {
	req := t.named(nl.IPCTNL_MSG_CT_GET, 0, of) // the answer says that more follow: the acknowledgement does
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return Entry{}, false, nil
	}
	if err == nil && len(msgs) != 1 {
		err = fmt.Errorf("%d answers", len(msgs))
	}
	if err != nil {
		return Entry{}, false, fmt.Errorf("looking for the connection %s: %w", of, err)
	}
	e, err := decode(msgs[0])
	return e, err == nil, err
}

// Delete forgets the connection that a tuple belongs to, in either direction, if there is one.
func (t *Table) Delete(of Tuple) error {
	req := t.named(nl.IPCTNL_MSG_CT_DELETE, 0, of)
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("forgetting the connection %s: %w", of, err)
	}
	return nil
}

// Loosen lets windows of a TCP connection be not looked at any more, if there is one: its packets
// are seen in part.
func (t *Table) Loosen(of Tuple) error {
	req := t.named(nl.IPCTNL_MSG_CT_NEW, 0, of)
	liberal := []byte{TCPLiberal, TCPLiberal}
	tcp := attr(attr(nil, nl.CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, liberal), nl.CTA_PROTOINFO_TCP_FLAGS_REPLY, liberal)
	req.AddRawData(attr(nil, nl.CTA_PROTOINFO|nested, attr(nil, nl.CTA_PROTOINFO_TCP|nested, tcp)))
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("loosening the connection %s: %w", of, err)
	}
	return nil
}

// Put adds a connection in the place of whatever has one of its tuples. Where keep says so of what
// is there, that stays.
func (t *Table) Put(e Entry, keep func(there Entry) bool) (put bool, err error) {
	for range 3 {
		err = t.Create(e)
		if !errors.Is(err, unix.EEXIST) {
			return err == nil, err
		}
		for _, of := range []Tuple{e.Orig, e.Reply} {
			there, found, err := t.Find(of)
			if err != nil {
				return false, err
			}
			if !found {
				continue
			}
			if there.Orig == e.Orig && there.Reply == e.Reply || keep(there) {
				return false, nil
			}
			if err := t.Delete(of); err != nil {
				return false, err
			}
		}
	}
	return false, err
}
