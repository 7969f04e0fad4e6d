// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/test/scenarios/programs"
)

// shrink returns the least part of a round that still fails: it leaves out packets, then objects of
// its clusters, then rules of its policies, in ever smaller groups, until nothing more can go
// (delta debugging, Zeller and Hildebrandt 2002).
func shrink(r *round, fails func(*round) bool) *round {
	for {
		before := len(r.packets()) + len(r.objects()) + len(r.rules())
		for _, parts := range []func() []part{r.packets, r.objects, r.rules, r.packets} {
			of := r
			all := parts()
			keep := least(len(all), func(keep []bool) bool { return fails(of.keeping(all, keep)) })
			*r = *of.keeping(all, keep)
		}
		if len(r.packets())+len(r.objects())+len(r.rules()) == before {
			return r
		}
	}
}

// least finds which of n parts are needed: of the others, fails is true without them.
func least(n int, fails func(keep []bool) bool) []bool {
	keep := slices.Repeat([]bool{true}, n)
	for size := (n + 1) / 2; size > 0; size /= 2 {
		for at := 0; at < n; at += size {
			try := slices.Clone(keep)
			clear(try[at:min(at+size, n)])
			if !slices.Equal(try, keep) && fails(try) {
				keep = try
			}
		}
	}
	return keep
}

// failing makes shrink's question: does a round still fail as err says: for a packet or for a
// state, by a difference or otherwise? What takes so long that the clocks may be why says nothing.
func failing(b bench, err error) func(*round) bool {
	alike := func(other error) bool {
		return errors.As(err, new(differs)) == errors.As(other, new(differs)) && errors.Is(err, programs.ErrDiffer) == errors.Is(other, programs.ErrDiffer)
	}
	return func(r *round) bool {
		begin := time.Now()
		err := r.play(b)
		return err != nil && alike(err) && time.Since(begin) < tooLong
	}
}

// tooLong is how long a round may take until what disagrees may be due to the programs' clock,
// which goes on by itself.
const tooLong = 3 * time.Second

// outRounds is the folder for the files of rounds that failed.
const outRounds = "../../out"

// reduce finds the least part of a round that fails, writes it to a file, and returns what to say
// of it.
func reduce(test string, b bench, seed uint64, r *round, err error) string {
	fails := failing(b, err)
	if !fails(r) {
		return "played again as it was, the round does not fail: something that was chosen at random matters"
	}
	r = shrink(r, fails)
	name := fmt.Sprintf("round-%s-%d.txtar", strings.ToLower(strings.TrimPrefix(test, "Test")), seed)
	again := fmt.Sprintf("WEIR_ROUND=$PWD/out/%s go test ./test/scenarios -run '^%s$'", name, test)
	what, _, _ := strings.Cut(err.Error(), logBegins)
	if err := r.write(filepath.Join(outRounds, name), fmt.Sprintf("The least part of WEIR_SEED=%d that fails. To play it:\n%s\n\n%s", seed, again, what)); err != nil {
		return "the least part of it that fails could not be written: " + err.Error()
	}
	read, err := readRound(filepath.Join(outRounds, name))
	if err != nil || !fails(read) {
		return fmt.Sprintf("out/%s is the least part of it, but does not fail as it is written (%v)", name, err)
	}
	return fmt.Sprintf("the least part of it that fails, %d events, %d objects and %d rules: %s", len(r.events), len(r.objects()), len(r.rules()), again)
}

// part is what can be left out of a round: an event, an object of all clusters, or a rule of a
// policy.
type part struct {
	event  int    // but the first one
	table  string // the field of model.Cluster
	key    any
	policy *model.Policy
	egress bool
	rule   int
}

// packets are the events, later clusters and times among them.
func (r *round) packets() []part {
	var out []part
	for i := 1; i < len(r.events); i++ {
		out = append(out, part{event: i})
	}
	return out
}

// objects are those of all clusters but the node itself.
func (r *round) objects() []part {
	var out []part
	seen := map[part]bool{}
	for _, c := range r.clusters() {
		eachTable(c, func(table string, m reflect.Value) {
			for _, k := range m.MapKeys() {
				p := part{table: table, key: k.Interface()}
				if !seen[p] && !(table == "Nodes" && p.key == c.Local.Node) {
					seen[p] = true
					out = append(out, p)
				}
			}
		})
	}
	slices.SortFunc(out, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(fmt.Sprint(a.key), fmt.Sprint(b.key)))
	})
	return out
}

// rules are those of all policies that are in force.
func (r *round) rules() []part {
	var out []part
	seen := map[*model.Policy]bool{}
	for _, c := range r.clusters() {
		for _, id := range sortedPolicies(c.Policies) {
			p := c.Policies[id]
			if seen[p] {
				continue
			}
			seen[p] = true
			for i := range p.Ingress {
				out = append(out, part{policy: p, rule: i})
			}
			for i := range p.Egress {
				out = append(out, part{policy: p, egress: true, rule: i})
			}
		}
	}
	return out
}

func (r *round) clusters() []*model.Cluster {
	var out []*model.Cluster
	for _, e := range r.events {
		if e.cluster != nil {
			out = append(out, e.cluster)
		}
	}
	return out
}

// eachTable calls f for each table of objects.
func eachTable(c *model.Cluster, f func(name string, table reflect.Value)) {
	for v := reflect.ValueOf(c).Elem(); ; v = v.FieldByName("Local") {
		for i := range v.NumField() {
			if v.Field(i).Kind() == reflect.Map {
				f(v.Type().Field(i).Name, v.Field(i))
			}
		}
		if !v.FieldByName("Local").IsValid() {
			return
		}
	}
}

// keeping returns the round without those of its parts that are not kept.
func (r *round) keeping(parts []part, keep []bool) *round {
	gone := map[part]bool{}
	for i, p := range parts {
		if !keep[i] {
			gone[p] = true
		}
	}
	out := &round{mtus: r.mtus, own: r.own, aside: r.aside}
	changed := map[*model.Policy]*model.Policy{}
	for i, e := range r.events {
		if gone[part{event: i}] {
			continue
		}
		if e.cluster != nil {
			e.cluster = snapshot(e.cluster)
			eachTable(e.cluster, func(table string, m reflect.Value) {
				for _, k := range m.MapKeys() {
					if gone[part{table: table, key: k.Interface()}] {
						m.SetMapIndex(k, reflect.Value{})
					}
				}
			})
			for id, p := range e.cluster.Policies {
				if changed[p] == nil {
					changed[p] = withoutRules(p, gone)
				}
				e.cluster.Policies[id] = changed[p]
			}
		}
		out.events = append(out.events, e)
	}
	return out
}

// withoutRules returns a policy without the rules that are gone: itself when none of its are.
func withoutRules(p *model.Policy, gone map[part]bool) *model.Policy {
	left := func(rules []model.Rule, egress bool) []model.Rule {
		var out []model.Rule
		for i := range rules {
			if !gone[part{policy: p, egress: egress, rule: i}] {
				out = append(out, rules[i])
			}
		}
		return out
	}
	q := *p
	q.Ingress, q.Egress = left(p.Ingress, false), left(p.Egress, true)
	if len(q.Ingress) == len(p.Ingress) && len(q.Egress) == len(p.Egress) {
		return p
	}
	return &q
}
