// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"

	"github.com/weir-net/weir/lab/internal/build"
	"github.com/weir-net/weir/lab/internal/images"
	"github.com/weir-net/weir/lab/internal/progress"
)

// Prepare builds what a lab needs and is missing in the cache.
func Prepare(ctx context.Context, cache string, p *progress.Reporter, programs func(build.Program) bool) (set *build.Set, seed string, err error) {
	b := &build.Builder{Cache: cache, Progress: p}
	if set, err = b.Build(ctx, programs); err != nil {
		return nil, "", err
	}
	src, err := b.KubernetesSource(ctx)
	if err != nil {
		return nil, "", err
	}
	i := &images.Builder{Cache: cache, Progress: p, Programs: set, KubernetesSource: src}
	archives, err := i.Build(ctx)
	if err != nil {
		return nil, "", err
	}
	seed, err = i.Seed(ctx, archives)
	return set, seed, err
}

// programs are those that a lab with these options runs.
func (o Options) programs() func(build.Program) bool {
	if other := o.Proxy.Other(); other != "" {
		return build.ForOther(other)
	}
	return build.ForLab
}

// prepare is Prepare for one lab, with the images that its nodes have besides.
func prepare(ctx context.Context, o Options, p *progress.Reporter) (*build.Set, string, error) {
	set, seed, err := Prepare(ctx, o.Cache, p, o.programs())
	if err != nil {
		return nil, "", err
	}
	seed, err = withImages(ctx, o, &images.Builder{Cache: o.Cache, Progress: p, Programs: set}, seed)
	return set, seed, err
}

// withImages adds to a seed what the nodes of this lab have besides: Weir's image, or that of its
// benchmarks alone, and those of another network plugin.
func withImages(ctx context.Context, o Options, i *images.Builder, seed string) (string, error) {
	with := i.SeedWithBench
	if o.Proxy.Weir() {
		with = i.SeedWithWeir
	}
	seed, err := with(ctx, seed, o.Weir)
	if err != nil {
		return "", err
	}
	return withOther(ctx, o, i, seed)
}
