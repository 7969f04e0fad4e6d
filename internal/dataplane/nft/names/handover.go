// SPDX-License-Identifier: Apache-2.0

package names

import (
	"errors"
	"time"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Left is what is left in the kernel of what pods were told.
func Left(conn *nftables.Conn) (out []conntrack.Told, err error) {
	var errs []error
	for _, f := range table.Families {
		all, err := read(conn, f)
		errs = append(errs, err)
		for _, e := range all {
			if index, name, ok := readComment(e.comment); ok && name != 0 && e.left > grace {
				out = append(out, conntrack.Told{IfIndex: index, Addr: e.addr, Name: uint64(name), Left: e.left - grace})
			}
		}
	}
	return out, errors.Join(errs...)
}

// Learn has pods know what another data plane's were told. Apply was called before.
func (p *Plane) Learn(all []conntrack.Told) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var out []element
	for _, t := range all {
		known, name := p.memory.pods[t.IfIndex], nodestate.NameID(t.Name)
		if known == nil || p.numbers[name] == 0 {
			continue
		}
		addr := t.Addr.Unmap()
		have, is := known.told[addr]
		if !is && p.memory.full(known, false) {
			continue
		}
		if !is {
			p.memory.all++
		}
		c := change{ifindex: t.IfIndex, addr: addr}
		known.told[addr] = note(have, []nodestate.NameID{name}, false, now.Add(t.Left), now, &c)
		out = append(out, p.elementsOf(c)...)
	}
	return p.writer.write(out)
}
