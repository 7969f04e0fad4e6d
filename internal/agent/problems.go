package agent

import (
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agent/lbhealth"
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/dataplane"
)

// problems are those of this machine and of the configuration, and then those of objects.
func (a *Agent) problems(snap snapshot) []weirv1.Problem {
	n := snap.node(a.opts.Node)
	out := slices.Clone(snap.config.Problems)
	for _, p := range a.ipam.Problems() {
		out = append(out, weirv1.Problem{Object: p.Object, Field: p.Field, Value: p.Value, Message: p.Message, Action: p.Action})
	}
	out = append(out, problems.Addresses(n)...)
	st := a.driver.Status()
	out = append(out, problems.HostEndpoints(n, st.Uplinks, a.onNFTables())...)
	out = append(out, problems.LateDrops(a.opts.Node, st.Arrival)...)
	out = append(out, a.metricsTLS.Problems(a.opts.Node)...)
	out = append(out, a.planes.problem(a.opts.Node, snap.config.Effective)...)
	if a.onNFTables() {
		out = append(out, a.limits.Of(a.opts.Node, snap.state, dataplane.Lacks(a.driver))...)
		out = append(out, problems.KubeProxy(a.opts.Node, a.cluster.servicesBy())...)
	}
	if len(st.Uplinks) == 0 && !a.onNFTables() {
		out = append(out, problems.NoUplinks(snap.config.Settings.DataIfaces))
	}
	out = append(out, problems.FullMaps(a.opts.Node, a.driver.Pressures())...)
	out = append(out, problems.Repairs(a.opts.Node, st)...)
	objects := slices.Concat(problems.Overlaps(snap.overlaps), problems.Unfit(n), problems.Claims(snap.refused), problems.Refusals(snap.state), problems.Overdrawn(n), snap.problems, snap.tierless)
	if c := a.serviceChecks.Load(); c != nil {
		objects = append(objects, lbhealth.Problems(a.opts.Node, c.Failing(), c.Unanswered())...)
	}
	if held, err := a.driver.Held(); err == nil {
		objects = append(objects, problems.BusyPods(held, a.onNFTables(), a.cluster.owner)...)
	}
	if spent, err := a.driver.Spent(); err == nil {
		objects = append(objects, problems.PodsWithoutPorts(spent, a.cluster.owner)...)
	}
	return problems.Shown(a.opts.Node, out, objects)
}
