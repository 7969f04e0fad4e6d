// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// Options tune an Allocator; the zero value of a field means its default.
type Options struct {
	// LowWater is the number of free addresses a family below which another block is claimed ahead
	// of need. Default 16.
	LowWater int
	// Cooldown is how long a released address rests while others are free. Default 30 s.
	Cooldown time.Duration
	// BlockIdle is how long a block that is not needed stays empty before it is given back. Default
	// 5 min.
	BlockIdle time.Duration
	// Refresh is the interval at which Run compares its blocks with the API. Default 5 min.
	Refresh time.Duration
	// Rescan is the interval at which Run looks for files that others removed or wrote, and for
	// idle blocks. Default 30 s.
	Rescan time.Duration
	// Owner reports which pod of the cluster has an address, as far as the agent knows. It is asked
	// for fixed addresses that no block of this node covers. May be nil.
	Owner func(netip.Addr) (pod model.Name, node string, ok bool)
	// Refuse says why an address is not to be given to a pod, "" when it may be: it is a node's, a
	// gateway's or a Service's. May be nil.
	Refuse func(netip.Addr) string
	// Kept says which virtual machine has an address, "" when none does: it is given by Granted
	// alone. May be nil.
	Kept func(netip.Addr) string
	// Routed says what has an address by the kernel's routes, "" when neither a pod nor this
	// machine does. cni.New sets it (UseInterfaces). May be nil.
	Routed func(netip.Addr) (string, error)
	// InUse reports whether the interface of a record exists: the record is kept then, also when
	// somebody removed its file. cni.New sets it (UseInterfaces). May be nil.
	InUse func(Record) bool
	// Locked reports whether no address is to be given and no block to be claimed for the time
	// being. May be nil.
	Locked func() bool
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Allocator gives addresses. It is safe for concurrent use.
type Allocator struct {
	node   string
	store  *store
	blocks Blocks
	log    *slog.Logger
	opt    Options
	wake   chan struct{}

	claiming sync.Mutex // held over claims and releases of blocks

	mu       sync.Mutex
	cfg      Config
	pools    []*pool
	problems []Problem // of the configuration
	own      map[netip.Prefix]*ownBlock
	taken    map[netip.Addr]Record
	aside    map[netip.Addr]string // in taken without a record: who else has them
	unkept   map[netip.Addr]Record // in taken, and no file has them yet
	broken   map[netip.Addr]error  // their files cannot be read; they are in taken too
	strange  []string              // names in the directory that are no addresses
	cooling  map[netip.Addr]time.Time
	listErr  error                   // of the last look at the API
	conflict map[netip.Prefix]string // blocks with allocations here that another node has
	noBlock  map[bool]bool           // by "is IPv6": there was no block left to claim
}

// ownBlock is a block of this node.
type ownBlock struct {
	cidr      netip.Prefix
	next      uint64 // where the search goes on
	releasing bool
	idleSince time.Time // zero: not idle
}

// Open reads the allocations below dir. Files that cannot be read keep their addresses taken;
// Problems names them. Blocks become known with Configure and Run.
func Open(dir, node string, blocks Blocks, opt Options, log *slog.Logger) (*Allocator, error) {
	if opt.LowWater == 0 {
		opt.LowWater = 16
	}
	if opt.Cooldown == 0 {
		opt.Cooldown = 30 * time.Second
	}
	if opt.BlockIdle == 0 {
		opt.BlockIdle = 5 * time.Minute
	}
	if opt.Refresh == 0 {
		opt.Refresh = 5 * time.Minute
	}
	if opt.Rescan == 0 {
		opt.Rescan = 30 * time.Second
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	s, err := openStore(dir)
	if err != nil {
		return nil, err
	}
	a := &Allocator{
		node: node, store: s, blocks: blocks, log: log, opt: opt, wake: make(chan struct{}, 1),
		aside: map[netip.Addr]string{}, unkept: map[netip.Addr]Record{},
		own: map[netip.Prefix]*ownBlock{}, cooling: map[netip.Addr]time.Time{}, conflict: map[netip.Prefix]string{}, noBlock: map[bool]bool{},
	}
	if err := a.load(); err != nil {
		return nil, err
	}
	for _, b := range s.loadBlocks() {
		if b.Node == node {
			a.own[b.CIDR] = &ownBlock{cidr: b.CIDR}
		}
	}
	return a, nil
}

// load reads the directory into memory.
func (a *Allocator) load() error {
	rebooted := a.store.rebooted()
	good, bad, strange, err := a.store.list()
	if err != nil {
		return err
	}
	if rebooted {
		for addr, why := range bad {
			// What an interrupted disk left half-written belonged to a container of the last boot.
			a.log.Warn("removing an unreadable allocation from before the reboot", "address", addr, "reason", why)
			if err := a.store.remove(addr); err == nil {
				delete(bad, addr)
			}
		}
	}
	if err := a.store.noteBoot(); err != nil {
		a.log.Warn("cannot note the boot in the address state directory", "error", err)
	}
	a.taken, a.broken, a.strange = good, bad, strange
	for addr, why := range bad {
		a.taken[addr] = Record{Address: addr, Node: a.node}
		a.log.Error("unreadable allocation: the address stays taken", "problem", a.brokenProblem(addr, why).String())
	}
	return nil
}

func (a *Allocator) brokenProblem(addr netip.Addr, why error) Problem {
	return a.store.broken(addr, why)
}

// Configure sets what of the cluster the allocation follows. Run and Allocate claim what is needed.
func (a *Allocator) Configure(cfg Config) {
	pools, problems := validatePools(cfg)
	a.mu.Lock()
	a.cfg, a.pools, a.problems = cfg, pools, problems
	a.mu.Unlock()
	a.kick()
}

// UseInterfaces sets Options.InUse and Options.Routed. It is called before Run.
func (a *Allocator) UseInterfaces(inUse func(Record) bool, routed func(netip.Addr) (string, error)) {
	a.opt.InUse, a.opt.Routed = inUse, routed
}

func (a *Allocator) kick() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Problems returns what is wrong now, for the status and the log.
func (a *Allocator) Problems() []Problem {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := append(slices.Clone(a.problems), a.shortage()...)
	for addr, why := range a.broken {
		out = append(out, a.brokenProblem(addr, why))
	}
	for _, name := range a.strange {
		out = append(out, a.store.strange(name))
	}
	out = append(out, a.unrecorded()...)
	for cidr, node := range a.conflict {
		out = append(out, Problem{Object: "IPAMBlock " + BlockName(cidr), Field: "spec.node", Value: node,
			Message: "the block has allocations on node " + a.node + " too; nothing more is given from it there",
			Action:  "delete the pods with addresses of the block on one of the two nodes"})
	}
	if a.listErr != nil {
		out = append(out, Problem{Object: "IPAMBlocks", Message: a.listErr.Error() + "; pods start while the blocks of node " + a.node + " have free addresses",
			Action: "see whether the API server is reachable from the node, and the permissions of weir-node"})
	}
	slices.SortFunc(out, func(x, y Problem) int { return strings.Compare(x.String(), y.String()) })
	return out
}

// Allocate takes the addresses of an interface, one a family, and returns their records: all or
// none. An *Error says what somebody has to change; other errors are worth another try.
func (a *Allocator) Allocate(ctx context.Context, req Request) ([]Record, error) {
	var out []Record
	fail := func(err error) ([]Record, error) {
		for _, r := range out {
			if rerr := a.release(r, false); rerr != nil {
				err = errors.Join(err, rerr)
			}
		}
		return nil, err
	}
	if a.locked() {
		return nil, &Error{"the datastore is locked (ClusterInformation default, datastoreReady: false): no pod gets an address until it is unlocked"}
	}
	if err := a.canRecord(); err != nil {
		return nil, err
	}
	for _, v6 := range []bool{false, true} {
		var fixed []netip.Addr
		for _, f := range req.Fixed {
			if f.Is6() == v6 {
				fixed = append(fixed, f)
			}
		}
		var r Record
		var err error
		switch {
		case len(fixed) > 1:
			err = &Error{fmt.Sprintf("%s and %s are asked for: at most one fixed address a family is possible", fixed[0], fixed[1])}
		case len(fixed) == 1:
			r, err = a.allocateFixed(ctx, req, fixed[0])
		case v6 && !req.IPv6, !v6 && !req.IPv4, len(req.Fixed) > 0:
			continue
		default:
			r, err = a.allocateAny(ctx, req, v6)
		}
		if err != nil {
			return fail(err)
		}
		out = append(out, r)
	}
	if len(out) == 0 {
		return nil, &Error{"neither an IPv4 nor an IPv6 address is asked for"}
	}
	a.kick()
	return out, nil
}

// locked reports whether nothing is given.
func (a *Allocator) locked() bool { return a.opt.Locked != nil && a.opt.Locked() }

// allocateAny takes a free address of the blocks of this node, and claims a block when there is
// none.
func (a *Allocator) allocateAny(ctx context.Context, req Request, v6 bool) (Record, error) {
	for rechecked := false; ; {
		a.mu.Lock()
		pools, err := a.choosePools(&req, v6)
		if err != nil {
			a.mu.Unlock()
			return Record{}, err
		}
		addr, ok := a.pick(pools)
		if ok {
			a.taken[addr] = a.pending(addr, req.Record)
		}
		a.mu.Unlock()
		if !ok && !rechecked {
			rechecked = true // one that was set aside may be free
			a.recheck()
			continue
		}
		if !ok {
			if err := a.claimFor(ctx, pools, v6); err != nil {
				return Record{}, err
			}
			continue
		}
		if held, err := a.heldElsewhere(addr, &req); err != nil || held != "" {
			a.setAside(addr, held, err)
			if err != nil {
				return Record{}, err
			}
			continue
		}
		r, err := a.commit(addr, req.Record)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		return r, err
	}
}

// choosePools returns the pools that a request may be served from; mu is held.
func (a *Allocator) choosePools(req *Request, v6 bool) ([]*pool, error) {
	want, from, family := req.Pools4, req.From4, "IPv4"
	if v6 {
		want, from, family = req.Pools6, req.From6, "IPv6"
	}
	var out []*pool
	if len(want) == 0 {
		closed := false
		for _, p := range a.pools {
			if p.CIDR.Addr().Is6() != v6 || !p.unasked() {
				continue
			}
			if !p.admits(req) {
				closed = true
				continue
			}
			out = append(out, p)
		}
		switch {
		case len(out) > 0:
			return out, nil
		case closed && req.NamespaceLabels == nil:
			return nil, fmt.Errorf("namespace %s is not known yet, and IPPools have a namespaceSelector", req.Namespace)
		}
		return nil, &Error{fmt.Sprintf("no %s IPPool gives addresses to pods of namespace %s on node %s: %s", family, req.Namespace, a.node, a.whyNoPool(v6))}
	}
	for _, name := range want {
		i := slices.IndexFunc(a.pools, func(p *pool) bool { return p.Name == name || p.CIDR.String() == name })
		switch {
		case i < 0:
			return nil, &Error{fmt.Sprintf("%s: there is no usable IPPool %q; the pools are: %s", from, name, a.poolNames())}
		case a.pools[i].CIDR.Addr().Is6() != v6:
			return nil, &Error{fmt.Sprintf("%s: IPPool %q is not an %s pool", from, name, family)}
		case !a.pools[i].usable():
			return nil, &Error{fmt.Sprintf("%s: IPPool %q is disabled, or its allowedUses lack Workload", from, name)}
		case !a.pools[i].admits(req):
			return nil, &Error{fmt.Sprintf("%s: the namespaceSelector of IPPool %q does not match namespace %s", from, name, req.Namespace)}
		case a.pools[i].forNode:
			out = append(out, a.pools[i])
		}
	}
	if len(out) == 0 {
		return nil, &Error{fmt.Sprintf("%s: the nodeSelectors of %s do not match node %s", from, strings.Join(want, ", "), a.node)}
	}
	return out, nil
}

func (a *Allocator) poolNames() string {
	var names []string
	for _, p := range a.pools {
		names = append(names, p.Name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func (a *Allocator) whyNoPool(v6 bool) string {
	var why []string
	for _, p := range a.pools {
		switch {
		case p.CIDR.Addr().Is6() != v6:
		case p.Disabled:
			why = append(why, p.Name+" is disabled")
		case p.Deleted != 0:
			why = append(why, p.Name+" was deleted")
		case !p.Workload:
			why = append(why, "allowedUses of "+p.Name+" lack Workload")
		case !p.forNode:
			why = append(why, "nodeSelector of "+p.Name+" does not match the node's labels")
		case p.Manual:
			why = append(why, "assignmentMode of "+p.Name+" is Manual")
		case p.namespaces != nil || p.closed:
			why = append(why, "namespaceSelector of "+p.Name+" does not match the namespace")
		}
	}
	for _, p := range a.problems {
		why = append(why, p.String())
	}
	if len(why) == 0 {
		return "there is none; create one"
	}
	return strings.Join(why, "; ")
}

// pick returns a free address of the pools' blocks; mu is held. Addresses that were just released
// come last.
func (a *Allocator) pick(pools []*pool) (netip.Addr, bool) {
	now := a.opt.Now()
	for _, rested := range []bool{true, false} {
		for _, p := range pools {
			for _, b := range a.ownIn(p) {
				if b.releasing {
					continue
				}
				for i, n := uint64(0), addrsOf(b.cidr); i < n; i++ {
					at := (b.next + i) % n
					addr := offset(b.cidr.Addr(), at)
					if _, taken := a.taken[addr]; taken || a.reserved(addr) {
						continue
					}
					if until, ok := a.cooling[addr]; ok && now.Before(until) && rested {
						continue
					}
					delete(a.cooling, addr)
					b.next = at + 1
					return addr, true
				}
			}
		}
	}
	return netip.Addr{}, false
}

// ownIn returns this node's blocks of a pool in order; mu is held.
func (a *Allocator) ownIn(p *pool) []*ownBlock {
	var out []*ownBlock
	for _, b := range a.own {
		if p.CIDR.Contains(b.cidr.Addr()) {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(x, y *ownBlock) int { return x.cidr.Addr().Compare(y.cidr.Addr()) })
	return out
}

func (a *Allocator) reserved(addr netip.Addr) bool {
	return slices.ContainsFunc(a.cfg.Reservations, func(p netip.Prefix) bool { return p.Contains(addr) })
}
