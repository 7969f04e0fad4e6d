// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The older kind of iptables keeps a table as one block of bytes (linux/netfilter/x_tables.h,
// linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h): entries one after the
// other, a chain of the user's begins with an entry whose target is ERROR and bears its name, and a
// jump is an offset into the block. A table is read, written anew without somebody's parts, and
// put in place at once; the kernel refuses it when the table has another number of entries by then.

// layout is what differs between IPv4 and IPv6, in bytes.
type layout struct {
	level    int
	family   int
	list     string // of the tables in use
	targetAt int    // u16 target_offset, u16 next_offset
	header   int
}

var layouts = []layout{
	{level: unix.IPPROTO_IP, family: unix.AF_INET, list: "/proc/thread-self/net/ip_tables_names", targetAt: 88, header: 112},
	{level: unix.IPPROTO_IPV6, family: unix.AF_INET6, list: "/proc/thread-self/net/ip6_tables_names", targetAt: 140, header: 168},
}

const (
	soSetReplace = 64
	soGetInfo    = 64
	soGetEntries = 65
	nameLen      = 32
	hooks        = 5
	targetHead   = 32 // u16 size, name[29], revision
	maxTable     = 64 << 20
)

// tableInfo is struct ipt_getinfo.
type tableInfo struct {
	Name       [nameLen]byte
	ValidHooks uint32
	HookEntry  [hooks]uint32
	Underflow  [hooks]uint32
	NumEntries uint32
	Size       uint32
}

// removeLegacy removes an owner's chains and rules from the tables of the older kind.
func removeLegacy(of Owner) (Removed, error) {
	var out Removed
	var errs []error
	for _, l := range layouts {
		b, err := os.ReadFile(l.list)
		if err != nil {
			continue // the older kind is not in use: asking would load it
		}
		for _, table := range strings.Fields(string(b)) {
			if !slices.Contains(tables, table) {
				continue
			}
			r, err := l.cleanTable(table, of)
			out.Add(r)
			if err != nil {
				errs = append(errs, fmt.Errorf("table %s: %w", table, err))
			}
		}
	}
	return out, errors.Join(errs...)
}

func (l layout) cleanTable(table string, of Owner) (Removed, error) {
	fd, err := unix.Socket(l.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return Removed{}, fmt.Errorf("open a raw socket: %w", err)
	}
	defer unix.Close(fd)
	info, block, err := l.read(fd, table)
	if err != nil {
		return Removed{}, err
	}
	next, after, removed, err := l.without(info, block, of)
	if err != nil || removed == (Removed{}) {
		return Removed{}, err
	}
	if err := l.replace(fd, info, after, next); err != nil {
		return Removed{}, err
	}
	return removed, nil
}

// info asks how large a table is.
func (l layout) info(fd int, table string) (tableInfo, error) {
	var info tableInfo
	copy(info.Name[:nameLen-1], table)
	n := uint32(unsafe.Sizeof(info))
	if err := getsockopt(fd, l.level, soGetInfo, unsafe.Pointer(&info), &n); err != nil {
		return info, fmt.Errorf("ask for its size: %w", err)
	}
	return info, nil
}

func (l layout) read(fd int, table string) (tableInfo, []byte, error) {
	info, err := l.info(fd, table)
	if err != nil {
		return info, nil, err
	}
	if info.Size > maxTable {
		return info, nil, fmt.Errorf("it has %d bytes, more than %d", info.Size, maxTable)
	}
	// struct ipt_get_entries: name, size, entries at a multiple of 8
	const head = nameLen + 8
	buf := make([]byte, head+int(info.Size))
	copy(buf, info.Name[:])
	binary.NativeEndian.PutUint32(buf[nameLen:], info.Size)
	n := uint32(len(buf))
	if err := getsockopt(fd, l.level, soGetEntries, unsafe.Pointer(&buf[0]), &n); err != nil {
		return info, nil, fmt.Errorf("read its entries: %w", err)
	}
	return info, buf[head:], nil
}

// entry is one entry of a block.
type entry struct {
	at    int
	bytes []byte
	chain string // that begins here: the target is ERROR
	jump  int    // offset that it jumps to, -1 when it does not
	drop  bool
}

func (l layout) entries(block []byte) ([]*entry, error) {
	var out []*entry
	for at := 0; at < len(block); {
		if len(block)-at < l.header {
			return nil, fmt.Errorf("entry at %d is cut", at)
		}
		target := int(binary.NativeEndian.Uint16(block[at+l.targetAt:]))
		size := int(binary.NativeEndian.Uint16(block[at+l.targetAt+2:]))
		if target < l.header || size < target+targetHead+4 || size > len(block)-at {
			return nil, fmt.Errorf("entry at %d has target %d and size %d", at, target, size)
		}
		e := &entry{at: at, bytes: block[at : at+size], jump: -1}
		name, _, _ := bytes.Cut(e.bytes[target+2:target+2+29], []byte{0})
		switch string(name) {
		case "ERROR":
			chain, _, _ := bytes.Cut(e.bytes[target+targetHead:], []byte{0})
			e.chain = string(chain)
		case "":
			if v := int32(binary.NativeEndian.Uint32(e.bytes[target+targetHead:])); v >= 0 {
				e.jump = int(v)
			}
		}
		out = append(out, e)
		at += size
	}
	return out, nil
}

// comment is the text of an entry's match "comment"; empty = it has none.
func (l layout) comment(e *entry) string {
	target := int(binary.NativeEndian.Uint16(e.bytes[l.targetAt:]))
	for at := l.header; at+targetHead <= target; {
		size := int(binary.NativeEndian.Uint16(e.bytes[at:]))
		if size < targetHead || at+size > target {
			return ""
		}
		if name, _, _ := bytes.Cut(e.bytes[at+2:at+2+29], []byte{0}); string(name) == "comment" {
			text, _, _ := bytes.Cut(e.bytes[at+targetHead:at+size], []byte{0})
			return string(text)
		}
		at += size
	}
	return ""
}

// without returns the block without an owner's chains, what leads to them, and its rules elsewhere.
func (l layout) without(info tableInfo, block []byte, of Owner) (out []byte, after tableInfo, removed Removed, err error) {
	all, err := l.entries(block)
	if err != nil {
		return nil, info, removed, err
	}
	gone := map[int]bool{} // offsets that chains which go begin at, behind their names
	inside := false
	for _, e := range all {
		if e.chain != "" {
			if inside = of.Chain(e.chain); inside {
				gone[e.at+len(e.bytes)] = true
				removed.Chains++
			}
		}
		e.drop = inside
	}
	moved := map[int]int{}
	size := 0
	for _, e := range all {
		fallsThrough := e.jump == e.at+len(e.bytes) // a rule without a target: not a jump
		leads := e.jump >= 0 && !fallsThrough && gone[e.jump]
		if !e.drop && e.chain == "" && (leads || of.comments(l.comment(e))) {
			e.drop = true
			removed.Rules++
		}
		moved[e.at] = size // of one that goes: where the next one comes to lie
		if !e.drop {
			size += len(e.bytes)
		}
	}
	after = info
	after.NumEntries = 0
	for _, e := range all {
		if e.drop {
			continue
		}
		b := bytes.Clone(e.bytes)
		if e.jump >= 0 {
			to, ok := moved[e.jump]
			if !ok {
				return nil, info, removed, fmt.Errorf("entry at %d jumps to %d, where none begins", e.at, e.jump)
			}
			if e.jump == e.at+len(e.bytes) {
				to = len(out) + len(b)
			}
			target := int(binary.NativeEndian.Uint16(b[l.targetAt:]))
			binary.NativeEndian.PutUint32(b[target+targetHead:], uint32(to))
		}
		out = append(out, b...)
		after.NumEntries++
	}
	after.Size = uint32(len(out))
	for h := range hooks {
		if info.ValidHooks&(1<<h) != 0 {
			after.HookEntry[h] = uint32(moved[int(info.HookEntry[h])])
			after.Underflow[h] = uint32(moved[int(info.Underflow[h])])
		}
	}
	return out, after, removed, nil
}

// replace puts a table in place: struct ipt_replace.
func (l layout) replace(fd int, before, after tableInfo, block []byte) error {
	counters := make([]byte, 16*int(before.NumEntries)) // the kernel writes the old ones here
	var pin runtime.Pinner
	pin.Pin(&counters[0])
	defer pin.Unpin()
	buf := append([]byte{}, after.Name[:]...)
	ne := binary.NativeEndian
	buf = ne.AppendUint32(buf, after.ValidHooks)
	buf = ne.AppendUint32(buf, after.NumEntries)
	buf = ne.AppendUint32(buf, after.Size)
	for _, v := range append(append([]uint32{}, after.HookEntry[:]...), after.Underflow[:]...) {
		buf = ne.AppendUint32(buf, v)
	}
	buf = ne.AppendUint32(buf, before.NumEntries)
	for len(buf)%8 != 0 {
		buf = append(buf, 0)
	}
	buf = ne.AppendUint64(buf, uint64(uintptr(unsafe.Pointer(&counters[0]))))
	buf = append(buf, block...)
	if err := setsockopt(fd, l.level, soSetReplace, unsafe.Pointer(&buf[0]), len(buf)); err != nil {
		return fmt.Errorf("put it in place without these chains: %w", err)
	}
	return nil
}

func getsockopt(fd, level, name int, value unsafe.Pointer, size *uint32) error {
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(value), uintptr(unsafe.Pointer(size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func setsockopt(fd, level, name int, value unsafe.Pointer, size int) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(value), uintptr(size), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// LegacySize is how large a table of the older kind of iptables is: it changes when the table does.
type LegacySize struct{ entries, size uint32 }

// LegacyTable is a table of the older kind, of one family.
type LegacyTable struct {
	l    layout
	name string
}

// LegacyInUse returns the tables of a name that are in use, of both families. Others are not asked
// for: that would load the older kind.
func LegacyInUse(name string) []LegacyTable {
	var out []LegacyTable
	for _, l := range layouts {
		if b, err := os.ReadFile(l.list); err == nil && slices.Contains(strings.Fields(string(b)), name) {
			out = append(out, LegacyTable{l, name})
		}
	}
	return out
}

// Family is AF_INET or AF_INET6.
func (t LegacyTable) Family() int { return t.l.family }

// Size asks how large the table is.
func (t LegacyTable) Size() (LegacySize, error) {
	fd, err := unix.Socket(t.l.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return LegacySize{}, fmt.Errorf("open a raw socket: %w", err)
	}
	defer unix.Close(fd)
	info, err := t.l.info(fd, t.name)
	return LegacySize{info.NumEntries, info.Size}, err
}

// HasChain reports whether the table has a chain of a name.
func (t LegacyTable) HasChain(name string) (bool, error) {
	fd, err := unix.Socket(t.l.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return false, fmt.Errorf("open a raw socket: %w", err)
	}
	defer unix.Close(fd)
	_, block, err := t.l.read(fd, t.name)
	if err != nil {
		return false, err
	}
	entries, err := t.l.entries(block)
	return slices.ContainsFunc(entries, func(e *entry) bool { return e.chain == name }), err
}
