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
