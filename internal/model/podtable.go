// SPDX-License-Identifier: Apache-2.0

package model

import (
	"iter"
	"math"
	"net/netip"
)

// PodTable is pods by their names and by their addresses, and in groups of those that differ in
// nothing that a rule can ask about. A hundred thousand pods take some 12 MB in it, in blocks that
// Go's garbage collector does not look into; as a map of Pods they take three times as much.
//
// What it hands out as a Pod was made for the caller. A PodRef is for a look, until the table
// changes. The zero value, and nil, is a table without pods; who changes it is alone with it.
type PodTable struct {
	rows   chunks[podRow]
	names  hashIndex // rows by name
	claims chunks[podClaim]
	addrs  hashIndex // the first of the claims of an address
	text   podText   // what pods are called
	nodes  interned  // where they are
	groups podGroups
	extra  map[uint32]podExtra // of rows, what few pods have
}

// podRow is a pod. Numbers of other rows and of claims are one more than their places: 0 is none.
type podRow struct {
	group      uint32 // its number in podGroups
	node       uint32
	text       textRef
	claim      uint32 // the first of its addresses
	prev, next uint32 // in its group
	created    uint32 // Unix seconds
	hasUID     bool
	hasExtra   bool
	uid        [16]byte
}

// podClaim is an address of a pod. Those of pods on the host network, and of pods whose containers
// have ended, are nobody's claims: they cannot be found by address.
type podClaim struct {
	addr      [16]byte
	row       uint32
	ofRow     uint32 // the pod's next address
	sameAddr  uint32 // the next claim of the address
	four, own bool   // it is of IPv4; it can be found by the address
}

// podExtra is what a row has no room for.
type podExtra struct {
	uid     string
	created int64
	asked   []netip.Addr
	qos     *QoS
	egress  *EgressClient
	gateway *EgressGateway
	sources []netip.Prefix
	// floating are the addresses that the pod asks to be reached by.
	floating []netip.Addr
}

// Len returns how many pods there are.
func (t *PodTable) Len() int {
	if t == nil {
		return 0
	}
	return t.names.n
}

// Get returns the pod of a name, nil when there is none.
func (t *PodTable) Get(name Name) *Pod {
	if r, ok := t.Ref(name); ok {
		return r.Pod()
	}
	return nil
}

// Ref returns the pod of a name for a look.
func (t *PodTable) Ref(name Name) (PodRef, bool) {
	if t == nil {
		return PodRef{}, false
	}
	row, ok := t.names.find(hashName(name.Namespace, name.Name), func(row uint32) bool { return (PodRef{t, row}).Is(name) })
	return PodRef{t, row}, ok
}

// QoS returns how much the pod of a name may send and get; nil = there is no limit, or no such pod.
func (t *PodTable) QoS(name Name) *QoS {
	r, ok := t.Ref(name)
	if !ok || !r.at().hasExtra {
		return nil
	}
	return t.extra[r.row].qos
}

// Sources returns the prefixes that the pod of a name asks to send from.
func (t *PodTable) Sources(name Name) []netip.Prefix {
	r, ok := t.Ref(name)
	if !ok || !r.at().hasExtra {
		return nil
	}
	return t.extra[r.row].sources
}

// Egress yields the pods that say something of egress gateways, or are one.
func (t *PodTable) Egress() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		if t == nil {
			return
		}
		for row, extra := range t.extra {
			if (extra.egress != nil || extra.gateway != nil) && !yield(PodRef{t, row}.Pod()) {
				return
			}
		}
	}
}

// Put stores a pod in the place of the one with its name, if there is one. Addresses with a zone,
// which no pod has, are left out.
func (t *PodTable) Put(p *Pod) {
	t.Delete(p.Name)
	row := t.rows.add()
	r := t.rows.at(row)
	*r = podRow{group: t.groups.join(t, p), node: t.nodes.add(p.Node), text: t.text.add(p.Name.Name)}
	var extra podExtra
	if r.uid, r.hasUID = ParseUUID(p.UID); !r.hasUID && p.UID != "" {
		extra.uid, r.hasExtra = p.UID, true
	}
	if r.created = uint32(p.Created); int64(r.created) != p.Created {
		extra.created, r.created, r.hasExtra = p.Created, math.MaxUint32, true
	}
	if len(p.Asked) > 0 {
		extra.asked, r.hasExtra = p.Asked, true
	}
	if p.QoS != nil {
		extra.qos, r.hasExtra = p.QoS, true
	}
	if p.Egress != nil || p.Gateway != nil {
		extra.egress, extra.gateway, r.hasExtra = p.Egress, p.Gateway, true
	}
	if len(p.Sources) > 0 {
		extra.sources, r.hasExtra = p.Sources, true
	}
	if len(p.Floating) > 0 {
		extra.floating, r.hasExtra = p.Floating, true
	}
	if r.hasExtra {
		if t.extra == nil {
			t.extra = map[uint32]podExtra{}
		}
		t.extra[row] = extra
	}
	t.names.insert(hashName(p.Name.Namespace, p.Name.Name), row, t.hashOfRow)
	t.link(row, r)
	own, last := !p.HostNetwork && !p.Finished, &r.claim
	for _, a := range p.Addrs {
		if a.IsValid() && a.Zone() == "" {
			claim := t.claims.add()
			*last = claim + 1
			c := t.claims.at(claim)
			*c = podClaim{addr: a.As16(), four: a.Is4(), row: row, own: own}
			if last = &c.ofRow; own {
				t.enter(claim, c)
			}
		}
	}
}

// link puts a row at the front of its group.
func (t *PodTable) link(row uint32, r *podRow) {
	g := t.groups.all[r.group]
	if g.n++; g.first > 0 {
		t.rows.at(g.first - 1).prev = row + 1
	}
	r.next, g.first = g.first, row+1
}

// enter makes a claim known by its address.
func (t *PodTable) enter(claim uint32, c *podClaim) {
	if first, ok := t.claimOf(c.addr, c.four); ok { // behind it: nobody asks which came first
		f := t.claims.at(first)
		c.sameAddr, f.sameAddr = f.sameAddr, claim+1
		return
	}
	t.addrs.insert(hashAddr(c.addr, c.four), claim, t.hashOfClaim)
}

func (t *PodTable) claimOf(addr [16]byte, four bool) (uint32, bool) {
	return t.addrs.find(hashAddr(addr, four), func(claim uint32) bool {
		c := t.claims.at(claim)
		return c.addr == addr && c.four == four
	})
}

// withdraw is enter the other way.
func (t *PodTable) withdraw(claim uint32, c *podClaim) {
	first, _ := t.claimOf(c.addr, c.four)
	if first == claim {
		t.addrs.remove(hashAddr(c.addr, c.four), claim, t.hashOfClaim)
		if c.sameAddr > 0 {
			t.addrs.insert(hashAddr(c.addr, c.four), c.sameAddr-1, t.hashOfClaim)
		}
		return
	}
	before := t.claims.at(first)
	for before.sameAddr != claim+1 {
		before = t.claims.at(before.sameAddr - 1)
	}
	before.sameAddr = c.sameAddr
}

// Delete takes a pod out.
func (t *PodTable) Delete(name Name) {
	ref, ok := t.Ref(name)
	if !ok {
		return
	}
	r := t.rows.at(ref.row)
	for claim := r.claim; claim > 0; {
		c := t.claims.at(claim - 1)
		if c.own {
			t.withdraw(claim-1, c)
		}
		next := c.ofRow
		t.claims.drop(claim - 1)
		claim = next
	}
	t.names.remove(hashName(name.Namespace, name.Name), ref.row, t.hashOfRow)
	g := t.groups.all[r.group]
	if r.next > 0 {
		t.rows.at(r.next - 1).prev = r.prev
	}
	if r.prev > 0 {
		t.rows.at(r.prev - 1).next = r.next
	} else {
		g.first = r.next
	}
	if g.n--; g.n == 0 {
		t.groups.leave(g)
	}
	t.nodes.drop(r.node)
	t.text.drop(r.text)
	if r.hasExtra {
		delete(t.extra, ref.row)
	}
	t.rows.drop(ref.row)
	if t.text.wasteful() {
		var text podText
		for i := range t.rows.n {
			if r := t.rows.at(i); r.group > 0 {
				r.text = text.add(string(t.text.bytes(r.text)))
			}
		}
		t.text = text
	}
}

// All yields the pods.
func (t *PodTable) All() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		for r := range t.Refs() {
			if !yield(r.Pod()) {
				return
			}
		}
	}
}

// Entries yields the pods with their names.
func (t *PodTable) Entries() iter.Seq2[Name, *Pod] {
	return func(yield func(Name, *Pod) bool) {
		for p := range t.All() {
			if !yield(p.Name, p) {
				return
			}
		}
	}
}

// Refs yields the pods for a look.
func (t *PodTable) Refs() iter.Seq[PodRef] {
	return func(yield func(PodRef) bool) {
		if t == nil {
			return
		}
		for i := range t.rows.n {
			if t.rows.at(i).group > 0 && !yield(PodRef{t, i}) {
				return
			}
		}
	}
}

// At yields the pods that claim an address: those with a network of their own whose containers have
// not ended.
func (t *PodTable) At(a netip.Addr) iter.Seq[PodRef] {
	return func(yield func(PodRef) bool) {
		if t == nil || !a.IsValid() || a.Zone() != "" {
			return
		}
		claim, ok := t.claimOf(a.As16(), a.Is4())
		if !ok {
			return
		}
		for next := claim + 1; next > 0; {
			c := t.claims.at(next - 1)
			if t.firstOf(c) && !yield(PodRef{t, c.row}) {
				return
			}
			next = c.sameAddr
		}
	}
}

// firstOf reports whether a pod does not name the address of a claim before that claim.
func (t *PodTable) firstOf(c *podClaim) bool {
	for next := t.rows.at(c.row).claim; next > 0; {
		have := t.claims.at(next - 1)
		if have.addr == c.addr && have.four == c.four {
			return have == c
		}
		next = have.ofRow
	}
	return true
}

// AddrsIn yields the claimed addresses that lie in a prefix, each once.
func (t *PodTable) AddrsIn(p netip.Prefix) iter.Seq[netip.Addr] {
	if t == nil {
		return func(func(netip.Addr) bool) {}
	}
	all := func(yield func(netip.Addr) bool) {
		for claim := range t.addrs.all() {
			if !yield(t.claims.at(claim).address()) {
				return
			}
		}
	}
	return AddrsIn(p, t.addrs.n, all, func(a netip.Addr) bool { _, is := t.claimOf(a.As16(), a.Is4()); return is })
}

// AddrsIn yields the addresses of an index of n that lie in a prefix: it goes through all of them,
// or through the prefix and asks for each address, whichever is shorter.
func AddrsIn(p netip.Prefix, n int, all iter.Seq[netip.Addr], has func(netip.Addr) bool) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		if free := p.Addr().BitLen() - p.Bits(); free > 16 || n < 1<<free {
			for a := range all {
				if p.Contains(a) && !yield(a) {
					return
				}
			}
			return
		}
		for a := p.Masked().Addr(); a.IsValid() && p.Contains(a); a = a.Next() {
			if has(a) && !yield(a) {
				return
			}
		}
	}
}

// ByName returns the pods by their names.
func (t *PodTable) ByName() map[Name]*Pod {
	out := make(map[Name]*Pod, t.Len())
	for p := range t.All() {
		out[p.Name] = p
	}
	return out
}

// Clone returns a table with the same pods.
func (t *PodTable) Clone() *PodTable {
	out := &PodTable{}
	for p := range t.All() {
		out.Put(p)
	}
	return out
}

func (t *PodTable) hashOfRow(row uint32) uint64 {
	r := t.rows.at(row)
	return hashNameBytes(t.groups.all[r.group].Like.Name.Namespace, t.text.bytes(r.text))
}

func (t *PodTable) hashOfClaim(claim uint32) uint64 {
	c := t.claims.at(claim)
	return hashAddr(c.addr, c.four)
}

func (c *podClaim) address() netip.Addr {
	a := netip.AddrFrom16(c.addr)
	if c.four {
		return a.Unmap()
	}
	return a
}
