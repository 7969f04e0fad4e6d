// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/jhash"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Affinity goes from one data plane to the other: which backend a client had last.

const (
	affinitySeed = 0x57656972 // see client
	affinityMod  = 1<<32 - 1
)

// affinityKey is a client of a list as the kernel has it in a key: each part fills whole words.
func affinityKey(f table.Family, list uint32, client netip.Addr) []byte {
	key := binary.NativeEndian.AppendUint32(nil, list)
	if f.Six {
		return binary.NativeEndian.AppendUint32(key, HashClient(client))
	}
	return append(key, client.AsSlice()...)
}

// HashClient is what client's expression makes of an address: nft_jhash_eval.
func HashClient(client netip.Addr) uint32 {
	return uint32(uint64(jhash.Sum(client.AsSlice(), affinitySeed)) * affinityMod >> 32)
}

// Remember adds clients with their backends, but for those that have one.
func (v *Follower) Remember(conn *nftables.Conn, f table.Family, all []conntrack.Affinity) error {
	set, there, err := table.Elements(conn, f, MapAffinity)
	if err != nil || set == nil {
		return err
	}
	known := map[string]bool{}
	for _, e := range there {
		known[string(e.Key)] = true
	}
	room := affinitySize - len(there)
	var more []nftables.SetElement
	for _, a := range all {
		for _, e := range v.affinityElements(a) {
			if !known[string(e.Key)] && len(more) < room {
				known[string(e.Key)] = true
				more = append(more, e)
			}
		}
	}
	const batch = 500 // of a message of netlink
	for len(more) > 0 {
		n := min(batch, len(more))
		if err := conn.SetAddElements(set, more[:n]); err != nil {
			return fmt.Errorf("remembering clients with affinity: %w", err)
		}
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("remembering clients with affinity: %w", err)
		}
		more = more[n:]
	}
	return nil
}

// affinityElements are those of a client, one for each list that it may be led by.
func (v *Follower) affinityElements(a conntrack.Affinity) (out []nftables.SetElement) {
	p := v.ports[nodestate.Frontend{Addr: a.Service.Addr(), Port: a.Service.Port(), Proto: model.Protocol(a.Proto)}]
	if p == nil || !v.f.Has(a.Client) {
		return nil
	}
	left := time.Duration(p.affinity())*time.Second - a.Age
	if left < time.Second {
		return nil
	}
	for _, l := range p.lists() {
		if l.number&listBits == HashList|HandList {
			continue // has the memory of the list without HandList
		}
		for i, n := range p.numbersOf(l) {
			if l.slots[i] == a.Backend {
				out = append(out, nftables.SetElement{Key: affinityKey(v.f, l.number, a.Client), Val: binary.NativeEndian.AppendUint32(nil, n), Timeout: left})
			}
		}
	}
	return out
}

// AffinityOf reads which backends clients have in the tables of a family. Of IPv6 addresses tables
// have hashes alone: clients are those that may be meant.
func AffinityOf(conn *nftables.Conn, f table.Family, clients func() map[uint32]netip.Addr) ([]conntrack.Affinity, error) {
	_, found, err := table.Elements(conn, f, MapAffinity)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	services, err := listsOf(conn, f)
	if err != nil {
		return nil, err
	}
	_, live, err := table.Elements(conn, f, MapLive)
	if err != nil {
		return nil, err
	}
	backends := map[string]netip.AddrPort{}
	size := f.Zero().BitLen() / 8
	for _, e := range live {
		if a, ok := addrOf(e.Val, size); ok && len(e.Val) >= size+2 {
			backends[string(e.Key)] = netip.AddrPortFrom(a, binary.BigEndian.Uint16(e.Val[size:]))
		}
	}
	var hashed map[uint32]netip.Addr
	if f.Six {
		hashed = clients()
	}
	var out []conntrack.Affinity
	for _, e := range found {
		if len(e.Key) < 8 || len(e.Val) < 4 {
			continue
		}
		service, ok := services[binary.NativeEndian.Uint32(e.Key)&^listBits]
		backend, ok2 := backends[string(e.Key[:4])+string(e.Val[:4])]
		client, ok3 := addrOf(e.Key[4:], 4)
		if f.Six {
			client, ok3 = hashed[binary.NativeEndian.Uint32(e.Key[4:])]
		}
		if ok && ok2 && ok3 {
			service.Client, service.Backend, service.Age = client, backend, max(e.Timeout-e.Expires, 0)
			out = append(out, service)
		}
	}
	return out, nil
}

// listsOf are the frontends that have lists, by the number of the list of all backends.
func listsOf(conn *nftables.Conn, f table.Family) (map[uint32]conntrack.Affinity, error) {
	out := map[uint32]conntrack.Affinity{}
	size := f.Zero().BitLen() / 8
	for _, name := range []string{MapServices, MapPorts} {
		_, found, err := table.Elements(conn, f, name)
		if err != nil {
			return nil, err
		}
		for _, e := range found {
			addr, rest := f.Zero(), e.Key
			if name == MapServices {
				a, ok := addrOf(e.Key, size)
				if !ok {
					continue
				}
				addr, rest = a, e.Key[size:]
			}
			if len(rest) < 6 || len(e.Val) < 4 {
				continue
			}
			out[binary.NativeEndian.Uint32(e.Val)&^listBits] = conntrack.Affinity{Proto: rest[0], Service: netip.AddrPortFrom(addr, binary.BigEndian.Uint16(rest[4:]))}
		}
	}
	return out, nil
}

func addrOf(b []byte, size int) (netip.Addr, bool) {
	if len(b) < size {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(b[:size])
}
