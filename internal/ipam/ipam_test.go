// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/model"
)

// apiServer is the API of a few nodes' allocators.
type apiServer struct {
	mu     sync.Mutex
	blocks map[netip.Prefix]Block
	err    error
	writes int
	lists  int
}

type nodeBlocks struct {
	api  *apiServer
	node string
}

func (n nodeBlocks) List(context.Context) ([]Block, error) {
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	n.api.lists++
	var out []Block
	for _, b := range n.api.blocks {
		out = append(out, b)
	}
	return out, n.api.err
}

func (n nodeBlocks) Claim(_ context.Context, cidr netip.Prefix, pool string) error {
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	if n.api.err != nil {
		return n.api.err
	}
	n.api.writes++
	if _, ok := n.api.blocks[cidr]; ok {
		return fmt.Errorf("claim: %w", ErrTaken)
	}
	n.api.blocks[cidr] = Block{CIDR: cidr, Node: n.node, Pool: pool}
	return nil
}

func (n nodeBlocks) Release(_ context.Context, cidr netip.Prefix) error {
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	n.api.writes++
	delete(n.api.blocks, cidr)
	return n.api.err
}

func newAPI() *apiServer { return &apiServer{blocks: map[netip.Prefix]Block{}} }

func cidr(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr   { return netip.MustParseAddr(s) }

func poolOf(name, prefix string, bits int) model.Pool {
	return model.Pool{Name: name, CIDR: cidr(prefix), BlockBits: bits, Workload: true}
}

type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func openTest(t testing.TB, dir, node string, api *apiServer, opt Options) *Allocator {
	t.Helper()
	a, err := Open(dir, node, nodeBlocks{api, node}, opt, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func reqFor(container string) Request {
	return Request{IPv4: true, Record: Record{ContainerID: container, IfName: "eth0", Namespace: "ns", Pod: "pod-" + container, Attempt: container}}
}

func mustAlloc(t testing.TB, a *Allocator, req Request) netip.Addr {
	t.Helper()
	rs, err := a.Allocate(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return rs[0].Address
}

func wantError(t testing.TB, err error, refused bool, texts ...string) {
	t.Helper()
	var e *Error
	if err == nil || errors.As(err, &e) != refused {
		t.Errorf("got %v, want an error that is a refusal: %v", err, refused)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q lacks %q", err, s)
		}
	}
}

func TestNoAPIWriteOnThePodStartPath(t *testing.T) {
	api := newAPI()
	a := openTest(t, t.TempDir(), "n1", api, Options{})
	a.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/16", 26)}})
	if err := a.Maintain(context.Background()); err != nil {
		t.Fatal(err)
	}
	writes, lists := api.writes, api.lists
	api.err = errors.New("the API server is away")
	seen := map[netip.Addr]bool{}
	for i := range 64 {
		got := mustAlloc(t, a, reqFor(fmt.Sprint("c", i)))
		if seen[got] {
			t.Fatal("given twice:", got)
		}
		seen[got] = true
	}
	if api.writes != writes || api.lists != lists {
		t.Errorf("%d writes and %d lists for 64 pods", api.writes-writes, api.lists-lists)
	}
	_, err := a.Allocate(context.Background(), reqFor("c64"))
	wantError(t, err, false, "away")
	api.err = nil
	mustAlloc(t, a, reqFor("c64"))
	if len(api.blocks) != 2 {
		t.Error("blocks:", api.blocks)
	}
}

func TestClaimAheadAndRelease(t *testing.T) {
	api := newAPI()
	c := &clock{t: time.Unix(1000, 0)}
	a := openTest(t, t.TempDir(), "n1", api, Options{Now: c.now, LowWater: 10})
	a.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 28)}})
	ctx := context.Background()
	for i := range 30 {
		mustAlloc(t, a, reqFor(fmt.Sprint("c", i)))
		if err := a.Maintain(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if len(api.blocks) != 3 { // 30 taken, at least 10 free
		t.Errorf("%d blocks, want 3", len(api.blocks))
	}
	for i := range 30 {
		if _, err := a.Release(fmt.Sprint("c", i), "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := a.releaseIdle(ctx); err != nil {
			t.Fatal(err)
		}
		c.advance(6 * time.Minute)
	}
	if len(api.blocks) != 2 { // 20 free are twice the low-water mark
		t.Errorf("%d blocks after release, want 2: %v", len(api.blocks), api.blocks)
	}
	// The last block of the node stays, and one with an allocation too.
	b := openTest(t, t.TempDir(), "n2", newAPI(), Options{Now: c.now, LowWater: 1})
	b.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 28)}})
	got := mustAlloc(t, b, reqFor("x"))
	b.Release("x", "eth0")
	for range 3 {
		b.releaseIdle(ctx)
		c.advance(time.Hour)
	}
	if len(b.own) != 1 {
		t.Error("the last block was released")
	}
	_ = got
}

func TestAddressesRest(t *testing.T) {
	c := &clock{t: time.Unix(1000, 0)}
	a := openTest(t, t.TempDir(), "n1", newAPI(), Options{Now: c.now, Cooldown: 10 * time.Second})
	a.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/30", 30)}})
	for i := range 3 {
		mustAlloc(t, a, reqFor(fmt.Sprint("c", i)))
	}
	first := a.Lookup("c0", "eth0")[0].Address
	a.Release("c0", "eth0")
	fourth := mustAlloc(t, a, reqFor("d"))
	if fourth == first {
		t.Error("a released address was given while another was free")
	}
	if got := mustAlloc(t, a, reqFor("e")); got != first { // none other is free
		t.Error(got)
	}
	a.Release("d", "eth0")
	c.advance(11 * time.Second)
	if got := mustAlloc(t, a, reqFor("f")); got != fourth {
		t.Error(got)
	}
}

func TestPools(t *testing.T) {
	ctx := context.Background()
	a := openTest(t, t.TempDir(), "n1", newAPI(), Options{})
	_, err := a.Allocate(ctx, reqFor("c"))
	wantError(t, err, true, "no IPv4 IPPool", "create one")
	disabled := poolOf("off", "10.1.0.0/24", 26)
	disabled.Disabled = true
	zone := poolOf("zone", "10.2.0.0/24", 26)
	zone.NodeSelector = "zone == 'a'"
	manual := poolOf("manual", "10.3.0.0/24", 26)
	manual.Manual = true
	lb := poolOf("lb", "10.4.0.0/24", 26)
	lb.Workload = false
	bad := poolOf("bad", "10.5.0.0/24", 26)
	bad.NodeSelector = "zone = 'a'"
	pools := []model.Pool{disabled, zone, manual, lb, bad}
	a.Configure(Config{Pools: pools})
	_, err = a.Allocate(ctx, reqFor("c"))
	wantError(t, err, true, "off is disabled", "nodeSelector of zone", "manual is Manual", "lb lack Workload", "IPPool bad spec.nodeSelector")
	a.Configure(Config{Pools: pools, NodeLabels: map[string]string{"zone": "a"}})
	if got := mustAlloc(t, a, reqFor("c")); !zone.CIDR.Contains(got) {
		t.Error(got)
	}
	req := reqFor("d")
	req.Pools4, req.From4 = []string{"manual"}, "annotation cni.projectcalico.org/ipv4pools"
	if got := mustAlloc(t, a, req); !manual.CIDR.Contains(got) {
		t.Error(got)
	}
	for name, want := range map[string]string{"off": "is disabled", "lb": "lack Workload", "nope": `no usable IPPool "nope"`} {
		req.Pools4 = []string{name}
		_, err = a.Allocate(ctx, req)
		wantError(t, err, true, want, req.From4)
	}
	req.Pools4 = []string{"10.2.0.0/24"}
	if got := mustAlloc(t, a, req); !zone.CIDR.Contains(got) {
		t.Error(got)
	}
	a.Configure(Config{Pools: []model.Pool{zone}, NodeLabels: map[string]string{"zone": "b"}})
	_, err = a.Allocate(ctx, reqFor("e"))
	wantError(t, err, true, "does not match")
}

func TestOverlapAndBadPools(t *testing.T) {
	a := openTest(t, t.TempDir(), "n1", newAPI(), Options{})
	size := poolOf("size", "10.9.0.0/24", 20)
	host := poolOf("host", "10.8.0.0/24", 26)
	host.CIDR = netip.PrefixFrom(addr("10.8.0.1"), 24)
	a.Configure(Config{Pools: []model.Pool{poolOf("old", "10.0.0.0/16", 26), poolOf("new", "10.0.7.0/24", 26), size, host}})
	text := fmt.Sprint(a.Problems())
	for _, want := range []string{"IPPool new spec.cidr", "overlaps 10.0.0.0/16 of IPPool old; the later one, IPPool new, is not used", "IPPool size spec.blockSize", "IPPool host spec.cidr"} {
		if !strings.Contains(text, want) {
			t.Errorf("problems %s lack %q", text, want)
		}
	}
	req := reqFor("c")
	req.Pools4 = []string{"new"}
	_, err := a.Allocate(context.Background(), req)
	wantError(t, err, true, `"new"`)
}

func TestExhausted(t *testing.T) {
	ctx := context.Background()
	a := openTest(t, t.TempDir(), "n1", newAPI(), Options{})
	a.Configure(Config{Pools: []model.Pool{poolOf("small", "10.0.0.0/30", 31), poolOf("tiny", "10.1.0.0/31", 31)}, Reservations: []netip.Prefix{cidr("10.1.0.1/32")}})
	for i := range 5 {
		mustAlloc(t, a, reqFor(fmt.Sprint(i)))
	}
	_, err := a.Allocate(ctx, reqFor("x"))
	wantError(t, err, true, "no free address for node n1", "IPPool small (10.0.0.0/30: 2 blocks of this node with 4", "IPPool tiny", "Add an IPPool")
	for _, r := range a.Records() {
		if r.Address == addr("10.1.0.1") {
			t.Error("a reserved address was given")
		}
	}
	b := openTest(t, t.TempDir(), "n1", newAPI(), Options{})
	b.Configure(Config{Pools: []model.Pool{poolOf("small", "10.0.0.0/30", 31)}, MaxBlocks: 1})
	mustAlloc(t, b, reqFor("1"))
	mustAlloc(t, b, reqFor("2"))
	_, err = b.Allocate(ctx, reqFor("3"))
	wantError(t, err, true, "maxBlocksPerHost")
}

func TestFixedAddresses(t *testing.T) {
	ctx := context.Background()
	api := newAPI()
	owner := func(a netip.Addr) (model.Name, string, bool) {
		return model.Name{Namespace: "x", Name: "y"}, "n9", a == addr("10.0.0.70")
	}
	a := openTest(t, t.TempDir(), "n1", api, Options{Owner: owner})
	other := openTest(t, t.TempDir(), "n2", api, Options{})
	cfg := Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/16", 26)}, Reservations: []netip.Prefix{cidr("10.0.0.64/28")}}
	a.Configure(cfg)
	other.Configure(cfg)
	fixed := func(container string, addrs ...string) (netip.Addr, error) {
		req := reqFor(container)
		for _, s := range addrs {
			req.Fixed = append(req.Fixed, addr(s))
		}
		rs, err := a.Allocate(ctx, req)
		if err != nil {
			return netip.Addr{}, err
		}
		return rs[0].Address, nil
	}
	if got, err := fixed("c1", "10.0.0.5"); err != nil || got != addr("10.0.0.5") || api.blocks[cidr("10.0.0.0/26")].Node != "n1" {
		t.Error(got, err, api.blocks)
	}
	_, err := fixed("c2", "10.0.0.5")
	wantError(t, err, true, "10.0.0.5 is already taken by pod ns/pod-c1")
	_, err = fixed("c2", "10.99.0.5")
	wantError(t, err, true, "lies in no usable IPPool")
	_, err = fixed("c2", "10.0.0.6", "10.0.0.7")
	wantError(t, err, true, "at most one fixed address a family")

	if err := (nodeBlocks{api, "n2"}).Claim(ctx, cidr("10.0.0.64/26"), "p"); err != nil {
		t.Fatal(err)
	}
	_, err = fixed("c3", "10.0.0.100")
	wantError(t, err, true, "block 10.0.0.64/26 of node n2", "IPReservation")
	if got, err := fixed("c3", "10.0.0.65"); err != nil || got != addr("10.0.0.65") {
		t.Error("a reserved address in another node's block:", got, err)
	}
	_, err = fixed("c4", "10.0.0.70")
	wantError(t, err, true, "taken by pod x/y on node n9")
	if err := other.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 48 {
		if got := mustAlloc(t, other, reqFor(fmt.Sprint("o", i))); cfg.Reservations[0].Contains(got) {
			t.Fatal("a reserved address was given automatically:", got)
		}
	}
	// A failed second family gives the first back.
	req := reqFor("c5")
	req.Fixed = []netip.Addr{addr("10.0.0.9"), addr("fd00::1")}
	_, err = a.Allocate(ctx, req)
	wantError(t, err, true, "fd00::1")
	if len(a.Lookup("c5", "eth0")) != 0 {
		t.Error("half of a dual-stack allocation is left")
	}
}

func TestNodesDoNotShareAddresses(t *testing.T) {
	api := newAPI()
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[netip.Addr]string{}
	for n := range 6 {
		node := fmt.Sprint("n", n)
		a := openTest(t, t.TempDir(), node, api, Options{LowWater: 4})
		a.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 28), poolOf("q", "fd00::/112", 122)}})
		for w := range 4 {
			wg.Go(func() {
				for i := range 9 {
					req := reqFor(fmt.Sprint(node, "-", w, "-", i))
					req.IPv6 = true
					rs, err := a.Allocate(context.Background(), req)
					if err != nil {
						var e *Error
						if !errors.As(err, &e) { // 6*36 fit into 16 blocks of 16 unless the spread is unlucky
							t.Error(err)
						}
						continue
					}
					mu.Lock()
					for _, r := range rs {
						if who, ok := seen[r.Address]; ok {
							t.Errorf("%s given to %s and %s", r.Address, who, node)
						}
						seen[r.Address] = node
						if i%3 == 0 {
							delete(seen, r.Address)
						}
					}
					if i%3 == 0 {
						if _, err := a.Release(req.ContainerID, "eth0"); err != nil {
							t.Error(err)
						}
					}
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if len(seen) < 200 {
		t.Error("only", len(seen), "addresses were given")
	}
}

func TestBlockDeletedByHand(t *testing.T) {
	ctx := context.Background()
	api := newAPI()
	a := openTest(t, t.TempDir(), "n1", api, Options{})
	a.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 26)}})
	got := mustAlloc(t, a, reqFor("c"))
	block, _ := got.Prefix(26)
	delete(api.blocks, block)
	if err := a.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if api.blocks[block].Node != "n1" {
		t.Error("a block with an allocation was not claimed again:", api.blocks)
	}
	api.blocks[block] = Block{CIDR: block, Node: "n2", Pool: "p"}
	if err := a.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(a.Problems()); !strings.Contains(text, BlockName(block)) || !strings.Contains(text, "n2") {
		t.Error(text)
	}
	if next := mustAlloc(t, a, reqFor("d")); block.Contains(next) {
		t.Error("an address of another node's block was given:", next)
	}
}

func TestStartWithoutAPI(t *testing.T) {
	dir, api := t.TempDir(), newAPI()
	a := openTest(t, dir, "n1", api, Options{})
	cfg := Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 26)}}
	a.Configure(cfg)
	first := mustAlloc(t, a, reqFor("c"))
	api.err = errors.New("away")
	b := openTest(t, dir, "n1", api, Options{})
	b.Configure(cfg)
	if got := mustAlloc(t, b, reqFor("d")); got == first {
		t.Error("given twice after a restart")
	}
	if rs := b.Lookup("c", "eth0"); len(rs) != 1 || rs[0].Address != first {
		t.Error("lost by a restart:", rs)
	}
}

func TestRun(t *testing.T) {
	api := newAPI()
	api.err = errors.New("away")
	a := openTest(t, t.TempDir(), "n1", api, Options{Rescan: 10 * time.Millisecond})
	a.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 26)}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	time.Sleep(20 * time.Millisecond)
	api.mu.Lock()
	api.err = nil
	api.mu.Unlock()
	claimed := func() bool { api.mu.Lock(); defer api.mu.Unlock(); return len(api.blocks) == 1 }
	await.That(t, "claiming a block after the API came back", func() error {
		if !claimed() {
			return errors.New("none")
		}
		return nil
	})
	mustAlloc(t, a, reqFor("c"))
	r := a.Records()[0]
	if _, err := ReleaseFile(a.store.dir, r.Address); err != nil {
		t.Fatal(err)
	}
	await.That(t, "forgetting a file that was removed", func() error {
		if n := len(a.Records()); n > 0 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
