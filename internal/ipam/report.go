// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// Inventory is what weir ipam looks at. What the caller cannot see stays empty: in the cluster the
// API objects, on a node also the records below its state directory (ReadDir), and where agents
// were asked those of their nodes.
type Inventory struct {
	Pools        []model.Pool // the oldest first
	Reservations []netip.Prefix
	Blocks       []Block
	Pods         []*model.Pod
	Nodes        map[string]bool // names of the nodes that exist; nil = not known
	Balancers    []Balancer      // Services of type LoadBalancer

	Records map[string][]Record // by node; of a node that is not in it nothing is known
	Broken  []Problem
}

// RecordsPath is the question to an agent for the records of its node, which it answers by
// NodeRecords.
const RecordsPath = "/addresses"

// NodeRecords are the records below a node's state directory, and what of it cannot be read.
type NodeRecords struct {
	Records []Record  `json:"records"`
	Broken  []Problem `json:"broken,omitempty"`
}

// AddRecords adds what a node has to the inventory.
func (inv *Inventory) AddRecords(node string, has NodeRecords) {
	if inv.Records == nil {
		inv.Records = map[string][]Record{}
	}
	inv.Records[node] = has.Records
	for _, p := range has.Broken {
		p.Object = "node " + node + ", " + p.Object
		inv.Broken = append(inv.Broken, p)
	}
}

// Balancer is a Service of type LoadBalancer with the addresses in its status.
type Balancer struct {
	Name  model.Name
	UID   string
	Addrs []netip.Addr
}

// ReadDir reads the records below a state directory, without changing anything, and says which
// files cannot be read.
func ReadDir(dir string) (NodeRecords, error) {
	s := &store{dir: dir}
	if _, err := os.Stat(dir); err != nil {
		return NodeRecords{}, fmt.Errorf("read the address state directory: %w", err)
	}
	good, bad, strange, err := s.list()
	if err != nil {
		return NodeRecords{}, err
	}
	var records []Record
	for _, r := range good {
		records = append(records, r)
	}
	var problems []Problem
	for addr, why := range bad {
		problems = append(problems, s.broken(addr, why))
	}
	for _, name := range strange {
		problems = append(problems, s.strange(name))
	}
	return NodeRecords{Records: sorted(records), Broken: sortProblems(problems)}, nil
}

// ReleaseFile frees an address on the node whose state directory it is, also when its file cannot
// be read, and returns what was known of it. The agent notices within its Rescan interval. The
// caller made sure that nobody uses the address.
func ReleaseFile(dir string, addr netip.Addr) (Record, error) {
	s := &store{dir: dir}
	r, err := s.read(addr)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, fmt.Errorf("release %s below %s: %w", addr, dir, errNoFile)
	}
	r.Address = addr
	if err := os.Remove(s.path(addr)); err != nil {
		return r, fmt.Errorf("release %s: %w", addr, err)
	}
	return r, nil
}

// PoolUsage is a line of weir ipam show.
type PoolUsage struct {
	Pool   string       `json:"pool"`
	CIDR   netip.Prefix `json:"cidr"`
	Size   float64      `json:"size"` // addresses
	Blocks int          `json:"blocks"`
	InUse  int          `json:"inUse"` // addresses of pods and Services
}

// BlockUsage is a line of weir ipam show --blocks.
type BlockUsage struct {
	Block
	Size  float64 `json:"size"`
	InUse int     `json:"inUse"`
}

// Usage is the answer of Show.
type Usage struct {
	Pools  []PoolUsage  `json:"pools"`
	Blocks []BlockUsage `json:"blocks"`
}

// Show counts addresses in use by pools and blocks: those of pods in the API and of local records.
func Show(inv Inventory) Usage {
	inUse := inv.addresses()
	var out Usage
	for _, p := range inv.Pools {
		u := PoolUsage{Pool: p.Name, CIDR: p.CIDR, Size: size(p.CIDR)}
		for _, b := range inv.Blocks {
			if p.CIDR.Contains(b.CIDR.Addr()) {
				u.Blocks++
			}
		}
		for a := range inUse {
			if p.CIDR.Contains(a) {
				u.InUse++
			}
		}
		out.Pools = append(out.Pools, u)
	}
	for _, b := range inv.Blocks {
		u := BlockUsage{Block: b, Size: size(b.CIDR)}
		for a := range inUse {
			if b.CIDR.Contains(a) {
				u.InUse++
			}
		}
		out.Blocks = append(out.Blocks, u)
	}
	slices.SortFunc(out.Blocks, func(x, y BlockUsage) int {
		return cmp.Or(x.CIDR.Addr().Compare(y.CIDR.Addr()), x.CIDR.Bits()-y.CIDR.Bits())
	})
	return out
}

func size(p netip.Prefix) float64 {
	n := 1.0
	for range p.Addr().BitLen() - p.Bits() {
		n *= 2
	}
	return n
}

// addresses returns who has which address, by pods and records.
func (inv *Inventory) addresses() map[netip.Addr][]string {
	out := map[netip.Addr][]string{}
	add := func(a netip.Addr, holder string) {
		if !slices.Contains(out[a], holder) {
			out[a] = append(out[a], holder)
		}
	}
	for _, p := range inv.Pods {
		for _, a := range p.Addrs {
			if !p.HostNetwork && !p.Finished {
				add(a, "pod "+p.Name.String())
			}
		}
	}
	for _, records := range inv.Records {
		for _, r := range records {
			add(r.Address, r.holder())
		}
	}
	for _, b := range inv.Blocks {
		for _, s := range b.Services {
			add(s.Address, "Service "+s.Service.String())
		}
	}
	return out
}

// Check finds what is wrong: pools that are not used, blocks that leaked, addresses given twice or
// outside of their node's blocks, and on a node records and pods that do not fit each other. An
// empty answer is a clean one.
func Check(inv Inventory) []Problem {
	_, out := validatePools(Config{Pools: inv.Pools})
	out = append(out, inv.Broken...)
	out = append(out, inv.checkBlocks()...)
	for a, holders := range inv.addresses() {
		if len(holders) > 1 && !inv.ofMachine(a) { // which is in two pods while it is moved
			slices.Sort(holders)
			out = append(out, Problem{Object: holders[0], Field: "status.podIPs", Value: a.String(),
				Message: fmt.Sprintf("the address also belongs to %v", holders[1:]), Action: "delete all but one of them; their owners make new pods"})
		}
	}
	for _, p := range inv.Pods {
		if !p.HostNetwork && !p.Finished {
			out = append(out, inv.checkPod(p)...)
		}
	}
	for node := range inv.Records {
		out = append(out, inv.checkRecords(node)...)
	}
	out = append(out, inv.checkBalancers()...)
	return sortProblems(out)
}

// Leaked returns the blocks of nodes that do not exist any more and that no pod has an address of:
// those that a controller, or weir ipam release, may give back. Without knowledge of the nodes
// there are none.
func Leaked(inv Inventory) []Block {
	if inv.Nodes == nil {
		return nil
	}
	var out []Block
	for _, b := range inv.Blocks {
		if inv.releasable(b) == nil {
			out = append(out, b)
		}
	}
	return out
}

// releasable says why a block cannot be given back by somebody else than its node.
func (inv *Inventory) releasable(b Block) error {
	if b.Node == weirv1.LoadBalancers {
		return fmt.Errorf("block %s belongs to Services of type LoadBalancer: weir-controller gives it back when the last of them is gone", b.CIDR)
	}
	if b.Machine != "" {
		return fmt.Errorf("address %s is kept for virtual machine %s: weir-controller gives it back when that is gone", b.CIDR.Addr(), b.Machine)
	}
	if inv.Nodes == nil || inv.Nodes[b.Node] {
		return fmt.Errorf("block %s belongs to node %s, which exists: that node releases the block itself when it is not needed", b.CIDR, b.Node)
	}
	for a, holders := range inv.addresses() {
		if b.CIDR.Contains(a) {
			return fmt.Errorf("block %s has the address %s of %s: delete the pod first", b.CIDR, a, holders[0])
		}
	}
	return nil
}

// ReleaseBlock gives the block of a node that is gone back to its pool; the error says why it may
// not. blocksOf returns the Blocks of a node (NewAPIBlocks).
func ReleaseBlock(ctx context.Context, inv Inventory, cidr netip.Prefix, blocksOf func(node string) Blocks) error {
	i := slices.IndexFunc(inv.Blocks, func(b Block) bool { return b.CIDR == cidr })
	if i < 0 {
		return fmt.Errorf("there is no block %s", cidr)
	}
	b := inv.Blocks[i]
	if err := inv.releasable(b); err != nil {
		return err
	}
	return blocksOf(b.Node).Release(ctx, cidr)
}

func sortProblems(ps []Problem) []Problem {
	slices.SortFunc(ps, func(x, y Problem) int { return cmp.Compare(x.String(), y.String()) })
	return ps
}

func (inv *Inventory) checkBlocks() []Problem {
	var out []Problem
	for i, b := range inv.Blocks {
		object := "IPAMBlock " + BlockName(b.CIDR)
		if !slices.ContainsFunc(inv.Pools, func(p model.Pool) bool { return p.CIDR.Contains(b.CIDR.Addr()) && p.CIDR.Bits() <= b.CIDR.Bits() }) {
			out = append(out, Problem{Object: object, Field: "spec.cidr", Value: b.CIDR.String(), Message: "lies in no IPPool; nothing more is given from it",
				Action: "create the pool again, or wait until its pods are gone: its node releases it then"})
		}
		if b.Machine != "" {
			continue // it lies in another one, and stays without its node
		}
		if inv.Nodes != nil && !inv.Nodes[b.Node] && b.Node != weirv1.LoadBalancers {
			out = append(out, Problem{Object: object, Field: "spec.node", Value: b.Node, Message: "there is no such node: the block leaked",
				Action: "run: weir ipam release " + b.CIDR.String()})
		}
		for _, o := range inv.Blocks[:i] {
			if o.Machine == "" && o.CIDR.Overlaps(b.CIDR) {
				out = append(out, Problem{Object: object, Field: "spec.cidr", Value: b.CIDR.String(),
					Message: fmt.Sprintf("overlaps block %s of node %s", o.CIDR, o.Node), Action: "delete the pods with addresses of one of them, then that block"})
			}
		}
	}
	return out
}

// checkBalancers compares the blocks of load balancers with the Services.
func (inv *Inventory) checkBalancers() []Problem {
	var out []Problem
	services := map[string]Balancer{}
	for _, s := range inv.Balancers {
		services[s.UID] = s
	}
	held := map[netip.Addr]string{}
	for _, b := range inv.Blocks {
		for _, a := range b.Services {
			held[a.Address] = a.UID
			s, ok := services[a.UID]
			object := "IPAMBlock " + BlockName(b.CIDR)
			switch {
			case !ok:
				out = append(out, Problem{Object: object, Field: "spec.allocations", Value: a.Address.String(),
					Message: "is held for Service " + a.Service.String() + ", which is gone or no load balancer: it leaked, or is about to be freed",
					Action:  "see whether weir-controller runs, and its log: it frees the address"})
			case !slices.Contains(s.Addrs, a.Address):
				out = append(out, Problem{Object: object, Field: "spec.allocations", Value: a.Address.String(),
					Message: "is held for Service " + a.Service.String() + ", whose status does not name it", Action: "see whether weir-controller runs, and its log"})
			}
		}
	}
	for _, s := range inv.Balancers {
		for _, a := range s.Addrs {
			inPool := slices.ContainsFunc(inv.Pools, func(p model.Pool) bool { return p.LoadBalancer && p.CIDR.Contains(a) })
			if inPool && held[a] != s.UID {
				out = append(out, Problem{Object: "Service " + s.Name.String(), Field: "status.loadBalancer.ingress", Value: a.String(),
					Message: "no block holds the address for this Service: another one may get it", Action: "see whether weir-controller runs, and which controller wrote the status"})
			}
		}
	}
	return out
}

// ofMachine reports whether an address is kept for a virtual machine.
func (inv *Inventory) ofMachine(a netip.Addr) bool {
	return slices.ContainsFunc(inv.Blocks, func(b Block) bool { return b.Machine != "" && b.CIDR.Addr() == a })
}

// checkPod compares a pod's addresses with the blocks of its node.
func (inv *Inventory) checkPod(p *model.Pod) []Problem {
	var out []Problem
	for _, a := range p.Addrs {
		if inv.ofMachine(a) {
			continue
		}
		i := slices.IndexFunc(inv.Blocks, func(b Block) bool { return b.CIDR.Contains(a) })
		if i >= 0 && inv.Blocks[i].Node == p.Node || slices.ContainsFunc(inv.Reservations, func(r netip.Prefix) bool { return r.Contains(a) }) {
			continue
		}
		where := "in no block"
		if i >= 0 {
			where = fmt.Sprintf("in block %s of node %s", inv.Blocks[i].CIDR, inv.Blocks[i].Node)
		}
		out = append(out, Problem{Object: "Pod " + p.Name.String(), Field: "status.podIPs", Value: a.String(),
			Message: fmt.Sprintf("the pod is on node %s and its address lies %s, where it may be given to another pod", p.Node, where), Action: "delete the pod; its owner makes a new one"})
	}
	return out
}

// checkRecords compares the records of a node with the pods that the API has on it.
func (inv *Inventory) checkRecords(node string) []Problem {
	pods := map[netip.Addr]model.Name{}
	known := map[model.Name]bool{}
	for _, p := range inv.Pods {
		if p.Node != node || p.HostNetwork || p.Finished {
			continue
		}
		known[p.Name] = true
		for _, a := range p.Addrs {
			pods[a] = p.Name
		}
	}
	var out []Problem
	held := map[netip.Addr]bool{}
	for _, r := range inv.Records[node] {
		held[r.Address] = true
		if !known[r.PodName()] {
			out = append(out, Problem{Object: "address " + r.Address.String(), Message: "is held by " + r.holder() + ", which is not in the API: it leaked, or its sandbox is being removed",
				Action: "the agent releases it when its interface is gone; or run on node " + node + ": weir ipam release " + r.Address.String()})
		}
	}
	for a, name := range pods {
		if !held[a] && !slices.ContainsFunc(inv.Broken, func(p Problem) bool { return strings.HasSuffix(p.Object, "/"+a.String()) }) {
			out = append(out, Problem{Object: "Pod " + name.String(), Field: "status.podIPs", Value: a.String(),
				Message: "node " + node + " has no record of the address, and may give it to another pod", Action: "delete the pod; its owner makes a new one"})
		}
	}
	return out
}
