package nft

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/delta"
)

// written is a table of ours as it is in the kernel, as far as is known, and as it should be.
type tableState struct {
	nft    knftables.Interface
	family family

	loaded bool
	there  bool // the table exists
	have   map[string]Chain
	want   map[string]Chain
	sets   map[string]Set
	hashes map[string][]string // of the rules found, by chain
	layout string              // that is wanted
	found  string              // that load found; empty = none
	flush  map[string]bool     // sets whose elements are not known

	elements map[string]*delta.Tracker[string, string]
	writes   uint64 // operations, since the start
	commits  uint32 // transactions
}

const layoutChain = "layout"

func newTableState(n knftables.Interface, f family) *tableState {
	return &tableState{nft: n, family: f, elements: map[string]*delta.Tracker[string, string]{}}
}

func (w *tableState) tracker(set string) *delta.Tracker[string, string] {
	t := w.elements[set]
	if t == nil {
		t = delta.New[string, string]()
		w.elements[set] = t
	}
	return t
}

// set, unset, pick and unpick implement sink.
func (w *tableState) set(set, key, value string)       { w.tracker(set).Set(key, value) }
func (w *tableState) unset(set, key string)            { w.tracker(set).Unset(key) }
func (w *tableState) pick(name string, rules []string) { w.want[name] = Chain{Rules: rules} }
func (w *tableState) unpick(name string)               { delete(w.want, name) }

// desire takes chains, sets, and the elements of the named sets from a table. The chains that other means desired stay.
func (w *tableState) desire(t *Table, sets []string, keep func(chain string) bool) {
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
		w.markAbsent() // the next transaction deletes what is there
		w.there = true
	}
	w.layout = layout
	for name := range w.elements {
		if _, ok := t.Sets[name]; !ok {
			delete(w.elements, name)
		}
	}
	for _, name := range sets {
		w.tracker(name).Desire(maps.All(t.Elements[name]))
	}
}

// forget takes the table for absent.
func (w *tableState) markAbsent() {
	w.there, w.have, w.hashes, w.flush = false, nil, nil, nil
	for name, t := range w.elements {
		want := maps.Collect(desired(t))
		w.elements[name] = delta.New[string, string]()
		w.elements[name].Desire(maps.All(want))
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
func (w *tableState) comments(name string, c Chain) []string {
	if name == layoutChain {
		return []string{w.layout}
	}
	out := make([]string, 0, len(c.Rules))
	for _, r := range c.Rules {
		out = append(out, ruleHash(r))
	}
	return out
}

// transaction makes what differs into one transaction; nil when nothing does. done is to be called when it was run.
func (w *tableState) transaction() (tx *knftables.Transaction, done func()) {
	tx = w.nft.NewTransaction()
	fresh := w.hashes == nil
	if fresh {
		if w.there {
			tx.Delete(&knftables.Table{})
		}
		tx.Add(&knftables.Table{})
		for _, name := range slices.Sorted(maps.Keys(w.sets)) {
			tx.Add(w.sets[name].object(name))
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
		w.there, w.flush = true, nil
		w.hashes = map[string][]string{}
		for name, c := range w.want {
			w.hashes[name] = w.comments(name, c)
		}
		for _, e := range after {
			w.elements[e.set].Done(e.key)
		}
	}
}

// addChains makes chains that are not there, so that whatever refers to them may come in any order.
func (w *tableState) addChains(tx *knftables.Transaction) {
	for _, name := range slices.Sorted(maps.Keys(w.want)) {
		if _, ok := w.hashes[name]; !ok {
			tx.Add(w.want[name].object(name))
		}
	}
}

// deleteChains deletes what is not wanted: all rules first, because one chain may lead to another.
func (w *tableState) deleteChains(tx *knftables.Transaction) {
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

func (w *tableState) writeRules(tx *knftables.Transaction, name string) {
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

// deleteElements deletes what is not wanted, and what has another value. It returns all that is pending.
func (w *tableState) deleteElements(tx *knftables.Transaction) (pending []element) {
	for _, name := range slices.Sorted(maps.Keys(w.elements)) {
		t, set := w.elements[name], w.sets[name]
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

func (w *tableState) addElements(tx *knftables.Transaction) {
	for _, name := range slices.Sorted(maps.Keys(w.elements)) {
		t := w.elements[name]
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

// write makes the kernel's table what it should be. At the end of a transaction the kernel makes rules visible a moment before
// it does elements of sets of intervals (nf_tables_commit, net/netfilter/nf_tables_api.c): packets in between would meet policy
// without the networks that it allows. So a table that is not there yet is filled first, and hooked then; and one that is made
// anew, which has to be hooked at once, drops at first what it is to reject: what is open sends it again.
func (w *tableState) write(ctx context.Context) error {
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

func (w *tableState) writeOnce(ctx context.Context) error {
	tx, done := w.transaction()
	if tx == nil {
		return nil
	}
	if err := w.nft.Run(ctx, tx); err != nil {
		w.loaded = false // what is there may not be what we believe
		return fmt.Errorf("writing table %s %s: %w", w.family.nft(), tableName, err)
	}
	w.writes += uint64(tx.NumOperations())
	w.commits++
	done()
	return nil
}

// remove deletes the table.
func (w *tableState) remove(ctx context.Context) error {
	tx := w.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if err := w.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("deleting table %s %s: %w", w.family.nft(), tableName, err)
	}
	return nil
}

// load reads what is in the kernel. What is desired stays desired.
func (w *tableState) load(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("reading table %s %s: %w", w.family.nft(), tableName, err) }
	w.markAbsent()
	w.found = ""
	chains, err := w.nft.List(ctx, "chains")
	if err != nil && !knftables.IsNotFound(err) {
		return fail(err)
	}
	if len(chains) == 0 {
		w.loaded = true
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
		w.found = h[0]
	}
	if w.found == "" || w.sets == nil || w.layout != "" && w.found != w.layout {
		w.loaded = true
		return nil // made anew
	}
	if err := w.loadElements(ctx); err != nil {
		return fail(err)
	}
	w.hashes, w.loaded = hashes, true
	return nil
}

// loadElements reads the elements of sets that are ours to write.
func (w *tableState) loadElements(ctx context.Context) error {
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
		want := maps.Collect(desired(w.tracker(name)))
		t := w.tracker(name)
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

// unreadable reports whether a part of an element's key is none that nft takes: nft lists an interval that ends where addresses
// do as a range, depending on its version, and knftables knows nothing of those.
func unreadable(elements []*knftables.Element) bool {
	for _, e := range elements {
		if len(e.Key) == 0 || slices.Contains(e.Key, "") {
			return true
		}
	}
	return false
}
