// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"

	"github.com/weir-net/weir/lab/internal/images"
	"github.com/weir-net/weir/lab/internal/plan"
)

// installOther deploys the network plugin that a lab has in the place of Weir.
func (u *starter) installOther(ctx context.Context) error {
	switch u.o.Proxy {
	case plan.ProxyCalico:
		return u.p.Step("install Calico", func() error { return u.calico(ctx) })
	case plan.ProxyFlannel:
		return u.p.Step("install flannel", func() error { return u.flannel(ctx) })
	}
	return nil
}

// withOther adds the images of that network plugin to a seed.
func withOther(ctx context.Context, o Options, i *images.Builder, seed string) (string, error) {
	switch o.Proxy {
	case plan.ProxyCalico:
		return withCalico(ctx, o, i, seed)
	case plan.ProxyFlannel:
		return i.SeedWithFlannel(ctx, seed)
	}
	return seed, nil
}
