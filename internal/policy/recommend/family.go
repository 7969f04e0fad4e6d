// SPDX-License-Identifier: Apache-2.0

package recommend

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/policy/past"
)

// family are pods of one namespace that policies cannot, or need not, tell apart: those of a
// workload, or with the same labels.
type family struct {
	namespace string
	workloads map[string]bool     // "Deployment web"; "" = not known
	members   []map[string]string // the different labels of its pods, without the generated ones
	selector  selector
	pods      map[string]bool // names
}

// selector is what selects a family: all of it holds.
type selector struct {
	equals map[string]string
	absent []string            // keys
	notIn  map[string][]string // values
}

func (s *selector) matches(labels map[string]string) bool {
	for k, v := range s.equals {
		if have, is := labels[k]; !is || have != v {
			return false
		}
	}
	for _, k := range s.absent {
		if _, is := labels[k]; is {
			return false
		}
	}
	for k, values := range s.notIn {
		if v, is := labels[k]; is && slices.Contains(values, v) {
			return false
		}
	}
	return true
}

// generated are labels that controllers make, whose values another pod of the same workload does
// not have, or a later version has not.
var generated = []string{
	"pod-template-hash", "controller-revision-hash", "pod-template-generation", "controller-uid", "job-name",
	"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index",
	"batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index",
	"helm.sh/chart", "app.kubernetes.io/version", "app.kubernetes.io/managed-by",
}

// preferred are labels that people name workloads by.
var preferred = []string{"app.kubernetes.io/name", "app", "k8s-app", "app.kubernetes.io/component", "app.kubernetes.io/instance", "component", "name", "tier", "role"}

// stable returns labels without the generated ones.
func stable(labels map[string]string) map[string]string {
	out := maps.Clone(labels)
	maps.DeleteFunc(out, func(k, _ string) bool { return slices.Contains(generated, k) })
	return out
}

// common returns the labels that all members have.
func (f *family) common() map[string]string {
	out := maps.Clone(f.members[0])
	for _, m := range f.members[1:] {
		maps.DeleteFunc(out, func(k, v string) bool { have, is := m[k]; return !is || have != v })
	}
	return out
}

// name is what people call it: its workloads, else its labels.
func (f *family) name() string {
	names := slices.Sorted(maps.Keys(f.workloads))
	if len(names) > 0 && names[0] == "" {
		names = names[1:]
	}
	if len(names) == 0 {
		for _, pod := range slices.Sorted(maps.Keys(f.pods)) {
			names = append(names, "Pod "+pod)
		}
	}
	if len(names) > 3 {
		names = append(names[:3], "more")
	}
	return strings.Join(names, ", ")
}

// families are those of namespaces.
type families struct {
	of map[string][]*family // by namespace
	// by finds a pod's by its name and labels.
	by map[model.Name]map[string]*family
}

// newFamilies sorts pods into families: those of questions as they were, and those of the cluster
// as it is, in these namespaces.
func newFamilies(c *model.Cluster, questions []*past.Question, namespaces map[string]bool) *families {
	fs := &families{of: map[string][]*family{}, by: map[model.Name]map[string]*family{}}
	byKey := map[[2]string]*family{}
	put := func(name model.Name, workload string, labels map[string]string) {
		if !namespaces[name.Namespace] {
			return
		}
		kept := stable(labels)
		key := cmp.Or(workload, text(kept))
		f := byKey[[2]string{name.Namespace, key}]
		if f == nil {
			f = &family{namespace: name.Namespace, workloads: map[string]bool{}, pods: map[string]bool{}}
			byKey[[2]string{name.Namespace, key}] = f
			fs.of[name.Namespace] = append(fs.of[name.Namespace], f)
		}
		f.workloads[workload], f.pods[name.Name] = true, true
		if !slices.ContainsFunc(f.members, func(m map[string]string) bool { return maps.Equal(m, kept) }) {
			f.members = append(f.members, kept)
		}
		if fs.by[name] == nil {
			fs.by[name] = map[string]*family{}
		}
		fs.by[name][text(labels)] = f
	}
	for _, q := range questions {
		for _, e := range []past.End{q.From, q.To} {
			if e.Pod != nil && e.Pod.Known {
				put(e.Pod.Name, e.Pod.Workload, e.Pod.Labels)
			}
		}
	}
	for p := range c.Pods.All() {
		if !p.HostNetwork && !p.Finished {
			put(p.Name, flows.WorkloadOf(p.Name.Name, p.Labels), p.Labels)
		}
	}
	for ns := range fs.of {
		fs.of[ns] = fs.separate(fs.of[ns])
	}
	return fs
}

// find returns the family of a pod.
func (fs *families) find(p *past.Pod) *family { return fs.by[p.Name][text(p.Labels)] }

// text is labels in one order.
func text(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(k + "=" + labels[k] + "\x00")
	}
	return b.String()
}

// separate gives the families of a namespace their selectors. Those that no selector tells apart
// become one.
func (fs *families) separate(all []*family) []*family {
	slices.SortFunc(all, func(a, b *family) int {
		return cmp.Or(strings.Compare(a.name(), b.name()), strings.Compare(text(a.members[0]), text(b.members[0])))
	})
	for again := true; again; {
		again = false
		for i := 0; i < len(all) && !again; i++ {
			with := all[i].choose(all)
			if with == nil {
				continue
			}
			fs.join(all[i], with)
			all = slices.DeleteFunc(all, func(f *family) bool { return f == with })
			again = true
		}
	}
	return all
}

// join makes two families one.
func (fs *families) join(f, with *family) {
	maps.Copy(f.workloads, with.workloads)
	maps.Copy(f.pods, with.pods)
	for _, m := range with.members {
		if !slices.ContainsFunc(f.members, func(have map[string]string) bool { return maps.Equal(have, m) }) {
			f.members = append(f.members, m)
		}
	}
	for _, versions := range fs.by {
		for labels, of := range versions {
			if of == with {
				versions[labels] = f
			}
		}
	}
}

// choose finds the smallest selector that selects the family and nothing else of the namespace. It
// returns a family that cannot be told apart; nil when there is none.
func (f *family) choose(all []*family) (with *family) {
	labels := f.common()
	keys := slices.Collect(maps.Keys(labels))
	rank := func(k string) int {
		if i := slices.Index(preferred, k); i >= 0 {
			return i
		}
		return len(preferred)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(rank(a)-rank(b), strings.Compare(a, b)) })
	selects := func(s selector) (others []*family) {
		for _, o := range all {
			if o != f && slices.ContainsFunc(o.members, s.matches) {
				others = append(others, o)
			}
		}
		return others
	}
	try := func(of ...string) bool {
		s := selector{equals: map[string]string{}}
		for _, k := range of {
			s.equals[k] = labels[k]
		}
		if len(selects(s)) > 0 {
			return false
		}
		f.selector = s
		return true
	}
	for _, k := range keys {
		if try(k) {
			return nil
		}
	}
	for i, a := range keys {
		for _, b := range keys[i+1:] {
			if try(a, b) {
				return nil
			}
		}
	}
	if try(keys...) {
		return nil
	}
	s := selector{equals: labels, notIn: map[string][]string{}}
	for _, o := range selects(s) {
		for _, m := range o.members {
			if s.matches(m) && !f.exclude(&s, m) {
				return o
			}
		}
	}
	f.selector = s
	return nil
}

// exclude adds to a selector what the family has and other pods with these labels have not. It
// reports whether there is anything.
func (f *family) exclude(s *selector, other map[string]string) bool {
	for _, k := range slices.Sorted(maps.Keys(other)) {
		has, same := false, false
		for _, m := range f.members {
			v, is := m[k]
			has, same = has || is, same || is && v == other[k]
		}
		switch {
		case !has:
			s.absent = append(s.absent, k)
			return true
		case !same:
			s.notIn[k] = append(s.notIn[k], other[k])
			return true
		}
	}
	return false
}
