// SPDX-License-Identifier: Apache-2.0

package wire

import "github.com/weir-net/weir/internal/model"

func (w *writer) egressClient(c *model.EgressClient) *EgressClient {
	if c == nil {
		return nil
	}
	return &EgressClient{Selector: w.text(c.Selector), Namespaces: w.text(c.Namespaces), Policy: w.text(c.Policy)}
}

func (w *writer) egressGateway(g *model.EgressGateway) *EgressGateway {
	if g == nil {
		return nil
	}
	return &EgressGateway{Ready: g.Ready, Labels: w.labels(g.Labels)}
}

func (w *writer) egressPolicy(p *model.EgressPolicy) *EgressPolicy {
	out := &EgressPolicy{Name: []byte(p.Name)}
	for _, r := range p.Rules {
		out.Rules = append(out.Rules, &EgressRule{Cidr: PrefixBytes(r.CIDR), Direct: r.Direct, Selector: w.text(r.Selector), Namespaces: w.text(r.Namespaces), Most: r.Most, PreferLocal: r.PreferLocal})
	}
	return out
}

func (r *reader) egressPolicy(p *EgressPolicy) (string, *model.EgressPolicy) {
	out := &model.EgressPolicy{Name: r.key("name", p.Name), Rules: list(r, "rules", p.Rules, r.egressRule)}
	return out.Name, out
}

func (r *reader) egressRule(m *EgressRule) model.EgressRule {
	return model.EgressRule{CIDR: one(r, "cidr", m.Cidr, r.prefix), Direct: m.Direct, Selector: r.text("selector", m.Selector), Namespaces: r.text("namespaces", m.Namespaces), Most: m.Most, PreferLocal: m.PreferLocal}
}

func (r *reader) egressClient(c *EgressClient) *model.EgressClient {
	if c == nil {
		return nil
	}
	return &model.EgressClient{Selector: r.text("selector", c.Selector), Namespaces: r.text("namespaces", c.Namespaces), Policy: r.text("policy", c.Policy)}
}

func (r *reader) egressGateway(g *EgressGateway) *model.EgressGateway {
	if g == nil {
		return nil
	}
	return &model.EgressGateway{Ready: g.Ready, Labels: r.labels("labels", g.Labels)}
}
