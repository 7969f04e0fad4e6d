// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// addrBytes is an address as 4 or 16 bytes, none of an invalid one. The model has none with a zone.
func addrBytes(a netip.Addr) []byte { return a.AsSlice() }

func (r *reader) addr(b []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(b)
	if !ok && len(b) > 0 {
		r.fail("", "%d bytes are no address", len(b))
	}
	return a
}

// PrefixBytes is a prefix as its address and its length, none of an invalid one.
func PrefixBytes(p netip.Prefix) []byte {
	if !p.IsValid() {
		return nil
	}
	return append(p.Addr().AsSlice(), byte(p.Bits()))
}

func (r *reader) prefix(b []byte) netip.Prefix {
	if len(b) == 0 {
		return netip.Prefix{}
	}
	p, err := ParsePrefix(b)
	if err != nil {
		r.fail("", "%v", err)
	}
	return p
}

// ParsePrefix reads what PrefixBytes makes of a valid prefix.
func ParsePrefix(b []byte) (netip.Prefix, error) {
	a, ok := netip.AddrFromSlice(b[:max(len(b), 1)-1])
	if !ok {
		return netip.Prefix{}, fmt.Errorf("%d bytes are no prefix", len(b))
	}
	p := netip.PrefixFrom(a, int(b[len(b)-1]))
	if !p.IsValid() {
		return netip.Prefix{}, fmt.Errorf("a prefix of %s with %d bits", a, b[len(b)-1])
	}
	return p, nil
}

// linkBytes is a link address, none of the zero one.
func linkBytes(mac [6]byte) []byte {
	if mac == ([6]byte{}) {
		return nil
	}
	return mac[:]
}

func (r *reader) link(field string, b []byte) (mac [6]byte) {
	if copy(mac[:], b); len(b) != 0 && len(b) != len(mac) {
		r.fail(field, "%d bytes are no link address", len(b))
	}
	return mac
}

// keyBytes is a public key, none of the zero one.
func keyBytes(k model.WireGuardKey) []byte {
	if k == (model.WireGuardKey{}) {
		return nil
	}
	return k[:]
}

func (r *reader) wireGuardKey(field string, b []byte) (k model.WireGuardKey) {
	if copy(k[:], b); len(b) != 0 && len(b) != len(k) {
		r.fail(field, "%d bytes are no public key", len(b))
	}
	return k
}
