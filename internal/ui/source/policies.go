// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/internal/watch"
)

// Policies implements ui.Source: the tiers and policies that the user may list, in the order in
// which they are evaluated.
func (u *User) Policies(ctx context.Context) (*ui.Policies, error) {
	out := &ui.Policies{Tiers: []ui.Tier{}, Missing: []string{}}
	tiers := map[string]*ui.Tier{}
	cluster := &model.Cluster{Tiers: map[string]*model.Tier{}}
	tierResource := v3.SchemeGroupVersion.WithResource("tiers")
	err := u.list(ctx, "Tier", tierResource, out, func(o *unstructured.Unstructured) error {
		var t v3.Tier
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &t); err != nil {
			return fmt.Errorf("read Tier %s: %w", o.GetName(), err)
		}
		cluster.Tiers[t.Name], _ = watch.ConvertTier(&t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, kind := range watch.PolicyKinds() {
		err := u.list(ctx, kind.Kind, kind.Resource, out, func(o *unstructured.Unstructured) error {
			p := kind.Policy(o)
			if p == nil {
				return nil // it is not in force
			}
			t := tiers[p.Tier]
			if t == nil {
				t = newTier(cluster, p.Tier)
				tiers[p.Tier] = t
			}
			t.Policies = append(t.Policies, policyOf(p, kind.Staged, o))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for name := range cluster.Tiers {
		if tiers[name] == nil {
			tiers[name] = newTier(cluster, name)
		}
	}
	for _, t := range tiers {
		slices.SortFunc(t.Policies, func(a, b ui.Policy) int {
			return cmp.Or(compareOrder(a.Order, b.Order), comparePolicyNames(a.Name, b.Name), cmp.Compare(model.KindInForce(a.Kind), model.KindInForce(b.Kind)), cmp.Compare(a.Kind, b.Kind))
		})
		out.Tiers = append(out.Tiers, *t)
	}
	slices.SortFunc(out.Tiers, func(a, b ui.Tier) int { return cmp.Or(compareOrder(a.Order, b.Order), cmp.Compare(a.Name, b.Name)) })
	return out, nil
}

// list gives all objects of a kind. A kind that the user may not list, or that the cluster does not
// have, is missing in out.
func (u *User) list(ctx context.Context, kind string, r schema.GroupVersionResource, out *ui.Policies, give func(*unstructured.Unstructured) error) error {
	list, err := u.Clients.Dynamic.Resource(r).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		out.Missing = append(out.Missing, fmt.Sprintf("%s: the right to list %s in group %s is missing", kind, r.Resource, r.Group))
		return nil
	case apierrors.IsNotFound(err):
		return nil // nobody has any
	case err != nil:
		return noRight(fmt.Errorf("list %s: %w", r.Resource, err))
	}
	for i := range list.Items {
		if err := give(&list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func newTier(c *model.Cluster, name string) *ui.Tier {
	t, known := c.Tier(name)
	return &ui.Tier{Name: name, Order: finite(t.Order), Pass: t.Pass, Known: known, Policies: []ui.Policy{}}
}

// finite is an order as JSON can say it.
func finite(order float64) *float64 {
	if math.IsInf(order, 0) || math.IsNaN(order) {
		return nil
	}
	return &order
}

func compareOrder(a, b *float64) int {
	last := func(o *float64) float64 {
		if o == nil {
			return math.Inf(1)
		}
		return *o
	}
	return cmp.Compare(last(a), last(b))
}

// comparePolicyNames orders by namespace, then name, as policies are evaluated.
func comparePolicyNames(a, b string) int {
	split := func(s string) (namespace, name string) {
		if ns, name, ok := strings.Cut(s, "/"); ok {
			return ns, name
		}
		return "", s
	}
	an, a := split(a)
	bn, b := split(b)
	return cmp.Or(cmp.Compare(an, bn), cmp.Compare(a, b))
}

// policyOf says what the page shows of a policy: what counts as the watch reads it, and the words
// of the object.
func policyOf(p *model.Policy, staged bool, o *unstructured.Unstructured) ui.Policy {
	out := ui.Policy{Kind: p.Kind, Name: p.Name.String(), Staged: staged, Order: finite(p.Order), Subject: subjectOf(o), Invalid: p.Invalid, Types: []string{}, Rules: []ui.Rule{}}
	for _, dir := range []struct {
		field, name string
		applies     bool
		rules       []model.Rule
	}{{"ingress", "Ingress", p.AppliesIngress, p.Ingress}, {"egress", "Egress", p.AppliesEgress, p.Egress}} {
		if !dir.applies {
			continue
		}
		out.Types = append(out.Types, dir.name)
		texts, _, _ := unstructured.NestedSlice(o.Object, "spec", dir.field) // what is no list has no texts
		for i := range dir.rules {
			r := ui.Rule{Detail: dir.field + "[" + strconv.Itoa(i) + "]", Action: actions[dir.rules[i].Action]}
			if name := dir.rules[i].Name; name != "" {
				r.Detail += " " + strconv.Quote(name)
			}
			if i < len(texts) {
				r.Text = inYAML(texts[i])
			}
			out.Rules = append(out.Rules, r)
		}
	}
	return out
}

var actions = [...]string{model.Allow: "Allow", model.Deny: "Deny", model.Pass: "Pass", model.Log: "Log"}

func inYAML(v any) string {
	text, err := yaml.Marshal(v)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// subjectOf says whom a policy is about, in the object's words.
func subjectOf(o *unstructured.Unstructured) string {
	spec, _, _ := unstructured.NestedMap(o.Object, "spec")
	var words []string
	for _, field := range []string{"subject", "podSelector", "selector", "namespaceSelector", "serviceAccountSelector"} {
		switch v := spec[field].(type) {
		case string:
			if v != "" {
				words = append(words, field+": "+v)
			}
		case map[string]any:
			if len(v) == 0 {
				continue
			}
			if text, err := json.Marshal(v); err == nil {
				words = append(words, field+": "+string(text))
			}
		}
	}
	if len(words) == 0 {
		if o.GetNamespace() != "" {
			return "all pods of namespace " + o.GetNamespace()
		}
		return "all pods"
	}
	return strings.Join(words, "; ")
}
