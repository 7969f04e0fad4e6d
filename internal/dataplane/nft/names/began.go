// SPDX-License-Identifier: Apache-2.0

package names

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// began is Began as it was read last, for records of flows: a connection that has ended is in what
// was read before that.
type began struct {
	mu          sync.Mutex
	now, before map[uint32]uint32 // numbers of patterns, by that of the connection
	read        time.Time
}

// beganEvery is between two looks at the kernel.
const beganEvery = 2 * time.Second

// BeganBy returns the pattern by which a connection began; 0 = none.
func (p *Plane) BeganBy(connection uint32) nodestate.NameID {
	p.mu.Lock()
	names := p.byNumber
	p.mu.Unlock()
	if len(names) == 0 {
		return 0
	}
	b := &p.began
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.read) > beganEvery {
		b.read = time.Now()
		if now, err := readBegan(); err == nil {
			b.before, b.now = b.now, now
		} else {
			p.log.Debug("which connections names allowed is not known", "error", err)
		}
	}
	n, ok := b.now[connection]
	if !ok {
		n = b.before[connection]
	}
	return names[n]
}

func readBegan() (map[uint32]uint32, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	out := map[uint32]uint32{}
	for _, f := range table.Families {
		_, all, err := table.Elements(conn, f, Began)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			if len(e.Key) == 8 {
				out[binary.NativeEndian.Uint32(e.Key)] = binary.NativeEndian.Uint32(e.Key[4:])
			}
		}
	}
	return out, nil
}
