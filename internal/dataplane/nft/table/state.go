// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/delta"
)

// State is a table of ours as it is in the kernel, as far as is known, and as it should be.
type State struct {
	nft    knftables.Interface
	Family Family

	Loaded bool // what is in the kernel was read, or written without an error
	there  bool // the table exists
	have   map[string]Chain
	want   map[string]Chain
	sets   map[string]Set
	hashes map[string][]string // of the rules found, by chain
	layout string              // that is wanted
	Found  string              // that load found; empty = none
	flush  map[string]bool     // sets whose elements are not known

	Elements map[string]*delta.Tracker[string, string]
	Writes   uint64 // operations, since the start
	Commits  uint32 // transactions
	Made     uint32 // how often the table was made anew, without what packets or others added
}

const layoutChain = "layout"

// NewState is a table of which nothing is known yet.
func NewState(n knftables.Interface, f Family) *State {
	return &State{nft: n, Family: f, Elements: map[string]*delta.Tracker[string, string]{}}
}

// Present reports whether a table of the wanted layout is in the kernel, as far as is known.
func (w *State) Present() bool { return w.hashes != nil }

// Current reports whether what is in the kernel was read or written, and is of the wanted layout.
func (w *State) Current() bool { return w.Loaded && w.Present() }

// There reports whether a table is in the kernel, of whatever layout, as far as is known.
func (w *State) There() bool { return w.there }

// Drop takes the table away, if it is there.
func (w *State) Drop(ctx context.Context) error {
	tx := w.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if err := w.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("removing table %s %s: %w", w.Family.NFT(), Name, err)
	}
	w.Commits++
	w.Reset()
	w.Loaded = true
	return nil
}

// Invalidate makes the next apply read the table again.
func (w *State) Invalidate() { w.Loaded = false }

// Reset makes the table be read again, and forgets everything that was desired.
func (w *State) Reset() {
	writes, commits, made := w.Writes, w.Commits, w.Made
	*w = *NewState(w.nft, w.Family)
	w.Writes, w.Commits, w.Made = writes, commits, made
}

// Define says which sets and which layout are wanted, before load.
func (w *State) Define(t *Table) { w.sets, w.layout = t.Sets, t.layout() }

// InKernel are the comments of the rules in the kernel, by chain, as far as is known.
func (w *State) InKernel() map[string][]string { return w.hashes }

// Definition returns a set as it is wanted.
func (w *State) Definition(set string) (s Set, ok bool) {
	s, ok = w.sets[set]
	return s, ok
}

// Tracker follows the elements of a set.
func (w *State) Tracker(set string) *delta.Tracker[string, string] {
	t := w.Elements[set]
	if t == nil {
		t = delta.New[string, string]()
		w.Elements[set] = t
	}
	return t
}

// Set wants an element.
func (w *State) Set(set, key, value string) { w.Tracker(set).Set(key, value) }

// Unset no longer wants an element.
func (w *State) Unset(set, key string) { w.Tracker(set).Unset(key) }

// Pick wants a chain, which Desire leaves alone if it is asked to.
func (w *State) Pick(name string, rules []string) { w.want[name] = Chain{Rules: rules} }

// Unpick no longer wants a chain.
func (w *State) Unpick(name string) { delete(w.want, name) }

// Desire takes chains, sets, and the elements of the named sets from a table. The chains that other
// means desired stay.
func (w *State) Desire(t *Table, sets []string, keep func(chain string) bool) {
	for name := range w.want {
		if _, ok := t.Chains[name]; !ok && !keep(name) {
			delete(w.want, name)
		}
	}
	if w.want == nil {
		w.want = map[string]Chain{}
	}
	maps.Copy(w.want, t.Chains)
	layout := t.layout()
	w.want[layoutChain] = Chain{Rules: []string{"return"}}
	w.sets = t.Sets
	if w.there && w.layout != layout {
		w.MarkAbsent() // the next transaction deletes what is there
		w.there = true
	}
	w.layout = layout
	for name := range w.Elements {
		if _, ok := t.Sets[name]; !ok {
			delete(w.Elements, name)
		}
	}
	for _, name := range sets {
		w.Tracker(name).Desire(maps.All(t.Elements[name]))
	}
}

// MarkAbsent takes the table for absent.
func (w *State) MarkAbsent() {
	w.there, w.have, w.hashes, w.flush = false, nil, nil, nil
	for name, t := range w.Elements {
		want := maps.Collect(desired(t))
		w.Elements[name] = delta.New[string, string]()
		w.Elements[name].Desire(maps.All(want))
	}
}

// desired walks what a tracker's table should hold.
func desired(t *delta.Tracker[string, string]) func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) {
		for k := range t.All() {
			if v, ok := t.Desired(k); ok && !yield(k, v) {
				return
			}
		}
		for k, v := range t.Writes() {
			if _, ok := t.Actual(k); !ok && !yield(k, v) {
				return
			}
		}
	}
}

// comments of a chain's rules: what they are recognized by. The layout's is that of the table.
func (w *State) comments(name string, c Chain) []string {
	if name == layoutChain {
		return []string{w.layout}
	}
	out := make([]string, 0, len(c.Rules))
	for _, r := range c.Rules {
		out = append(out, ruleHash(r))
	}
	return out
}

// transaction makes what differs into one transaction; nil when nothing does. done is to be called
// when it was run.
func (w *State) transaction() (tx *knftables.Transaction, done func()) {
	tx = w.nft.NewTransaction()
	fresh := w.hashes == nil
	if fresh {
		if w.there {
			tx.Delete(&knftables.Table{})
		}
		tx.Add(&knftables.Table{})
		for _, name := range slices.Sorted(maps.Keys(w.sets)) {
			tx.Add(w.sets[name].Object(name))
		}
	}
	w.addChains(tx)
	after := w.deleteElements(tx)
	for _, name := range slices.Sorted(maps.Keys(w.want)) {
		w.writeRules(tx, name)
	}
	w.addElements(tx)
	w.deleteChains(tx)
	if tx.NumOperations() == 0 {
		return nil, nil
	}
	return tx, func() {
		if fresh {
			w.Made++
		}
		w.there, w.flush = true, nil
		w.hashes = map[string][]string{}
		for name, c := range w.want {
			w.hashes[name] = w.comments(name, c)
		}
		for _, e := range after {
			w.Elements[e.set].Done(e.key)
		}
	}
}

// addChains makes chains that are not there, so that whatever refers to them may come in any order.
func (w *State) addChains(tx *knftables.Transaction) {
	for _, name := range slices.Sorted(maps.Keys(w.want)) {
		if _, ok := w.hashes[name]; !ok {
			tx.Add(w.want[name].object(name))
		}
	}
}

// deleteChains deletes what is not wanted: all rules first, because one chain may lead to another.
func (w *State) deleteChains(tx *knftables.Transaction) {
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(w.hashes)) {
		if _, ok := w.want[name]; !ok {
			tx.Flush(&knftables.Chain{Name: name})
			gone = append(gone, name)
		}
	}
	for _, name := range gone {
		tx.Delete(&knftables.Chain{Name: name})
	}
}

func (w *State) writeRules(tx *knftables.Transaction, name string) {
	c := w.want[name]
	want := w.comments(name, c)
	have, there := w.hashes[name]
	if there && slices.Equal(have, want) {
		return
	}
	if there && len(have) > 0 {
		tx.Flush(&knftables.Chain{Name: name})
	}
	for i, r := range c.Rules {
		tx.Add(&knftables.Rule{Chain: name, Rule: r, Comment: &want[i]})
	}
}

// deleteElements deletes what is not wanted, and what has another value. It returns all that is
// pending.
func (w *State) deleteElements(tx *knftables.Transaction) (pending []element) {
	for _, name := range slices.Sorted(maps.Keys(w.Elements)) {
		t, set := w.Elements[name], w.sets[name]
		if w.flush[name] {
			if set.Value == "" {
				tx.Flush(&knftables.Set{Name: name})
			} else {
				tx.Flush(&knftables.Map{Name: name})
			}
		}
		for _, k := range sorted(t.Deletes()) {
			v, _ := t.Actual(k)
			tx.Delete(set.element(name, k, v))
			pending = append(pending, element{set: name, key: k})
		}
		for k := range t.Writes() {
			if v, ok := t.Actual(k); ok {
				tx.Delete(set.element(name, k, v))
			}
			pending = append(pending, element{set: name, key: k})
		}
	}
	return pending
}

func (w *State) addElements(tx *knftables.Transaction) {
	for _, name := range slices.Sorted(maps.Keys(w.Elements)) {
		t := w.Elements[name]
		writes := maps.Collect(t.Writes())
		for _, k := range slices.Sorted(maps.Keys(writes)) {
			tx.Add(w.sets[name].element(name, k, writes[k]))
		}
	}
}

func sorted(keys func(yield func(string) bool)) []string {
	out := slices.Collect(keys)
	slices.Sort(out)
	return out
}

// Write makes the kernel's table what it should be. At the end of a transaction the kernel makes
// rules visible a moment before it does elements of sets of intervals (nf_tables_commit,
// net/netfilter/nf_tables_api.c): packets in between would meet policy without the networks that it
// allows. So a table that is not there yet is filled first, and hooked then; and one that is made
// anew, which has to be hooked at once, drops at first what it is to reject: what is open sends it
// again.
func (w *State) Write(ctx context.Context) error {
	if w.hashes == nil {
		all := w.want
		if w.there {
			w.want = withoutRejects(all)
		} else {
			w.want = withoutHooks(all)
		}
		err := w.writeOnce(ctx)
		w.want = all
		if err != nil {
			return err
		}
	}
	return w.writeOnce(ctx)
}

func withoutHooks(chains map[string]Chain) map[string]Chain {
	out := maps.Clone(chains)
	maps.DeleteFunc(out, func(_ string, c Chain) bool { return c.Hook != "" })
	return out
}

// rejects is a rule's last statement where it answers.
var rejects = regexp.MustCompile(`\breject with .*$`)

func withoutRejects(chains map[string]Chain) map[string]Chain {
	out := maps.Clone(chains)
	for name, c := range out {
		rules := make([]string, len(c.Rules))
		for i, r := range c.Rules {
			rules[i] = rejects.ReplaceAllString(r, "drop")
		}
		c.Rules = rules
		out[name] = c
	}
	return out
}

func (w *State) writeOnce(ctx context.Context) error {
	tx, done := w.transaction()
	if tx == nil {
		return nil
	}
	if err := w.nft.Run(ctx, tx); err != nil {
		w.Loaded = false // what is there may not be what we believe
		return fmt.Errorf("writing table %s %s: %w", w.Family.NFT(), Name, err)
	}
	w.Writes += uint64(tx.NumOperations())
	w.Commits++
	done()
	return nil
}

// Load reads what is in the kernel. What is desired stays desired.
func (w *State) Load(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("reading table %s %s: %w", w.Family.NFT(), Name, err) }
	w.MarkAbsent()
	w.Found = ""
	chains, err := w.nft.List(ctx, "chains")
	if err != nil && !knftables.IsNotFound(err) {
		return fail(err)
	}
	if len(chains) == 0 {
		w.Loaded = true
		return nil
	}
	w.there = true
	rules, err := w.nft.ListRules(ctx, "")
	if err != nil {
		return fail(err)
	}
	hashes := map[string][]string{}
	for _, c := range chains {
		hashes[c] = nil
	}
	for _, r := range rules {
		text := ""
		if r.Comment != nil {
			text = *r.Comment
		}
		hashes[r.Chain] = append(hashes[r.Chain], text)
	}
	if h := hashes[layoutChain]; len(h) == 1 {
		w.Found = h[0]
	}
	if w.Found == "" || w.sets == nil || w.layout != "" && w.Found != w.layout {
		w.Loaded = true
		return nil // made anew
	}
	if err := w.loadElements(ctx); err != nil {
		return fail(err)
	}
	w.hashes, w.Loaded = hashes, true
	return nil
}

// loadElements reads the elements of sets that are ours to write.
func (w *State) loadElements(ctx context.Context) error {
	w.flush = map[string]bool{}
	for name, s := range w.sets {
		if s.Learned {
			continue
		}
		kind := "set"
		if s.Value != "" {
			kind = "map"
		}
		found, err := w.nft.ListElements(ctx, kind, name)
		if s.Interval && (err != nil && !knftables.IsNotFound(err) || unreadable(found)) {
			w.flush[name] = true // knftables does not read prefixes in concatenations, nor ranges
			continue
		}
		if err != nil {
			return err
		}
		want := maps.Collect(desired(w.Tracker(name)))
		t := w.Tracker(name)
		t.Load(func(yield func(string, string) bool) {
			for _, e := range found {
				if !yield(strings.Join(e.Key, " . "), strings.Join(e.Value, " . ")) {
					return
				}
			}
		})
		t.Desire(maps.All(want))
	}
	return nil
}

// unreadable reports whether a part of an element's key is none that nft takes: nft lists an
// interval that ends where addresses do as a range, depending on its version, and knftables knows
// nothing of those.
func unreadable(elements []*knftables.Element) bool {
	for _, e := range elements {
		if len(e.Key) == 0 || slices.Contains(e.Key, "") {
			return true
		}
	}
	return false
}

// element is one of a set or a map.
type element struct{ set, key string }

// Wanted is what a set should say of a key.
func (w *State) Wanted(set, key string) (value string, found bool) {
	t := w.Elements[set]
	if t == nil {
		return "", false
	}
	if !w.sets[set].Interval {
		return t.Desired(key)
	}
	for k, v := range desired(t) {
		if holdsKey(k, key) {
			return v, true
		}
	}
	return "", false
}

// holdsKey reports whether an element of an interval set, whose parts may be prefixes, holds a key.
func holdsKey(element, key string) bool {
	have, want := strings.Split(element, " . "), strings.Split(key, " . ")
	if len(have) != len(want) {
		return false
	}
	for i, part := range have {
		if part == want[i] {
			continue
		}
		p, err := netip.ParsePrefix(part)
		a, err2 := netip.ParseAddr(want[i])
		if err != nil || err2 != nil || !p.Contains(a) {
			return false
		}
	}
	return true
}
