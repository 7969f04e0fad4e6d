// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/base64"
	"errors"
)

// WireGuardKey is a public key of Curve25519. The zero value is none.
type WireGuardKey [32]byte

// ParseWireGuardKey reads a key as WireGuard's tools write it (base64).
func ParseWireGuardKey(text string) (WireGuardKey, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != len(WireGuardKey{}) {
		return WireGuardKey{}, errors.New("is not the base64 of 32 bytes")
	}
	if k := WireGuardKey(b); k != (WireGuardKey{}) {
		return k, nil
	}
	return WireGuardKey{}, errors.New("is all zeros, which is no key")
}

// String is the key as WireGuard's tools write it, "" for none.
func (k WireGuardKey) String() string {
	if k == (WireGuardKey{}) {
		return ""
	}
	return base64.StdEncoding.EncodeToString(k[:])
}

// MarshalText is String.
func (k WireGuardKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (k *WireGuardKey) UnmarshalText(text []byte) (err error) {
	if *k = (WireGuardKey{}); len(text) > 0 {
		*k, err = ParseWireGuardKey(string(text))
	}
	return err
}

// WireGuardKeys are a node's keys: of the device that carries IPv4 and of the one for IPv6.
type WireGuardKeys struct{ IPv4, IPv6 WireGuardKey }

// Of returns the key for one family.
func (k WireGuardKeys) Of(six bool) WireGuardKey {
	if six {
		return k.IPv6
	}
	return k.IPv4
}

// With returns k with the key of a family.
func (k WireGuardKeys) With(six bool, key WireGuardKey) WireGuardKeys {
	if six {
		k.IPv6 = key
	} else {
		k.IPv4 = key
	}
	return k
}

// WireGuardSettings are the settings wireguard… .
type WireGuardSettings struct {
	IPv4, IPv6 WireGuardDevice
	// RulePriority is wireguardRoutingRulePriority.
	RulePriority int
	// KeepAlive is wireguardKeepAlive, seconds; 0 = none is sent.
	KeepAlive int
	// Strict: what would go to another node's pods in clear is dropped.
	Strict bool
	// Hosts is wireguardHostEncryptionEnabled: what nodes themselves exchange is encrypted, too.
	Hosts bool
}

// WireGuardDevice is one device of a node.
type WireGuardDevice struct {
	Enabled   bool
	Interface string
	Port      uint16
	MTU       int // 0 = derive
}

// Of returns the device for one family.
func (s *WireGuardSettings) Of(six bool) WireGuardDevice {
	if six {
		return s.IPv6
	}
	return s.IPv4
}

// DefaultWireGuard are the documented defaults.
func DefaultWireGuard() WireGuardSettings {
	return WireGuardSettings{
		IPv4: WireGuardDevice{Interface: "wireguard.cali", Port: 51820}, IPv6: WireGuardDevice{Interface: "wg-v6.cali", Port: 51821},
		RulePriority: 99,
	}
}

// LocalWireGuard is what the agent knows of encryption by itself.
type LocalWireGuard struct {
	// Own are the keys of this node's devices, which were ready for peers at least once.
	Own WireGuardKeys
	// Known are the keys that other nodes had when this one encrypted for them, by name. Where a
	// node's key is not published any more it counts: what took it away must not make anybody send
	// in clear.
	Known map[string]KnownWireGuard
}

// KnownWireGuard are the keys of a node of a UID.
type KnownWireGuard struct {
	UID  string
	Keys WireGuardKeys
}

// WireGuardKeyOf returns the key that counts for another node: the published one, else the one that
// it had.
func (l *LocalWireGuard) WireGuardKeyOf(n *Node, six bool) WireGuardKey {
	if k := n.WireGuard.Of(six); k != (WireGuardKey{}) {
		return k
	}
	if known, ok := l.Known[n.Name]; ok && known.UID == n.UID {
		return known.Keys.Of(six)
	}
	return WireGuardKey{}
}
