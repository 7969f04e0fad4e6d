// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"maps"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// serviceTable is a table that Services, and pods with host ports, fill, in each family.
type serviceTable int

const (
	frontendTable serviceTable = iota
	backendTable
	rangeTable
	maglevTable
	serviceTables
)

func (t serviceTable) String() string {
	return [...]string{"frontends of Services", "backends of Services", "source ranges of load balancers", "slots of Maglev tables"}[t]
}

// Bounds on what Services may take of a node where no setting says so.
const (
	MaxFrontends   = 1 << 16
	MaxBackends    = 1 << 18
	MaxRanges      = 1 << 16
	MaxMaglevSlots = 1 << 26 // 256 MiB
)

// demand is how many places of each table and family a Service asks for.
type demand [serviceTables][2]int

// serviceQuota decides which Services, and which pods' host ports, are carried, where they ask for
// more than there is.
type serviceQuota struct {
	asks    map[Source]demand
	total   demand
	room    [serviceTables]int
	Refused map[Source]bool
	stale   bool // Refused is to be found out again

	overdrawn []nodestate.Overdrawn
}

// update looks at those again that changed, and returns those that are refused now and were not
// before, or the other way round.
func (x *serviceQuota) update(c *cluster.View, s *Services, changed map[Source]struct{}) (turned []Source) {
	if x.asks == nil {
		x.asks = map[Source]demand{}
	}
	for src := range changed {
		if src.HostPorts {
			x.record(src, hostPortDemand(hostPorts(c, src)))
		} else {
			x.record(src, s.demandOf(c, src.Name))
		}
	}
	room := [serviceTables]int{frontendTable: cmp.Or(c.Settings.MaxFrontends, MaxFrontends), backendTable: cmp.Or(c.Settings.MaxBackends, MaxBackends),
		rangeTable: MaxRanges, maglevTable: MaxMaglevSlots}
	if room != x.room {
		x.room, x.stale = room, true
	}
	if !x.stale {
		return nil
	}
	x.stale = false
	before := x.Refused
	x.Refused, x.overdrawn = nil, nil
	for t := range serviceTables {
		for fam := range 2 {
			if x.total[t][fam] > x.room[t] {
				x.distribute(c, t, fam)
			}
		}
	}
	for src := range before {
		if !x.Refused[src] {
			turned = append(turned, src)
		}
	}
	for src := range x.Refused {
		if !before[src] {
			turned = append(turned, src)
		}
	}
	return turned
}

// record takes over what a source asks for.
func (x *serviceQuota) record(src Source, now demand) {
	before := x.asks[src]
	switch {
	case now == demand{} && before == demand{}:
		return // as of nearly every pod
	case now == demand{}:
		delete(x.asks, src)
	default:
		x.asks[src] = now
	}
	over := len(x.Refused) > 0
	for t := range serviceTables {
		for fam := range 2 {
			x.total[t][fam] += now[t][fam] - before[t][fam]
			over = over || x.total[t][fam] > x.room[t]
		}
	}
	x.stale = x.stale || over // an older or younger Service of the same size, too
}

// createdAt returns since when a source claims something; ok is false when it is gone.
func createdAt(c *cluster.View, src Source) (at int64, ok bool) {
	if src.HostPorts {
		if pod := c.Pods.Get(src.Name); pod != nil {
			return pod.Created, true
		}
	} else if svc := c.Services[src.Name]; svc != nil {
		return svc.Created, true
	}
	return 0, false
}

// distribute refuses sources what their namespaces are not granted of a table.
func (x *serviceQuota) distribute(c *cluster.View, t serviceTable, fam int) {
	var claims []table.Claim
	var sources []Source
	for src, asked := range x.asks {
		if at, there := createdAt(c, src); there && asked[t][fam] > 0 && !x.Refused[src] {
			name := src.Name.Name
			if src.HostPorts {
				name = "pod " + name // which no Service is named
			}
			claims = append(claims, table.Claim{Owner: src.Name.Namespace, Created: at, Name: name, Size: asked[t][fam]})
			sources = append(sources, src)
		}
	}
	owners := map[string]*nodestate.Overdrawn{}
	for i, as := range table.Grant(x.room[t], claims) {
		o := owners[claims[i].Owner]
		if o == nil {
			o = &nodestate.Overdrawn{Namespace: claims[i].Owner, Table: t.String()}
			owners[o.Namespace] = o
		}
		o.Asked += claims[i].Size
		if as != table.Refused {
			o.Granted += claims[i].Size
			continue
		}
		o.Refused++
		if x.Refused == nil {
			x.Refused = map[Source]bool{}
		}
		x.Refused[sources[i]] = true
	}
	for _, ns := range slices.Sorted(maps.Keys(owners)) {
		if o := owners[ns]; o.Refused > 0 {
			o.Reserved, o.Share, o.Total = table.Reserved(x.room[t], len(owners)), x.room[t]/table.ShareParts, x.room[t]
			x.overdrawn = append(x.overdrawn, *o)
		}
	}
}

// demandOf counts what a Service asks for, without making any of it.
func (s *Services) demandOf(c *cluster.View, name model.Name) (out demand) {
	svc := c.Services[name]
	if svc == nil {
		return out
	}
	for fam := range 2 {
		own := len(c.CarriedOf(svc.ClusterIPs, fam))
		if own == 0 {
			continue
		}
		lb := c.CarriedOf(svc.LBIPs, fam)
		more := len(c.CarriedOf(svc.ExternalIPs, fam)) + len(lb)
		for i := range svc.Ports {
			sp := &svc.Ports[i]
			external := more
			if sp.NodePort != 0 {
				external++
			}
			behind := s.countEndpoints(c, svc, sp, fam)
			out[frontendTable][fam] += own + external
			out[backendTable][fam] += behind
			if svc.Restricted && len(lb) > 0 {
				out[rangeTable][fam] += len(svc.SourceRanges) + len(lb)
			}
			if svc.Maglev && (external > 0 || !svc.InternalLocal) {
				out[maglevTable][fam] += maglevSlots(behind)
			}
		}
	}
	return out
}

// hostPortDemand counts what a pod's host ports ask for.
func hostPortDemand(ports []*port) (out demand) {
	for _, p := range ports {
		fam := cluster.Family(p.id.Addr)
		out[frontendTable][fam] += len(p.frontends)
		out[backendTable][fam] += len(p.backends)
	}
	return out
}

// countEndpoints counts the endpoints of a Service's port in one family. One on this node counts
// twice, being in two lists.
func (s *Services) countEndpoints(c *cluster.View, svc *model.Service, sp *model.ServicePort, fam int) (n int) {
	for _, name := range s.slices[svc.Name] {
		sl := c.Slices[name]
		if sl == nil {
			continue
		}
		ports := 0
		for _, ep := range sl.Ports {
			if ep.Name == sp.Name && ep.Protocol == sp.Protocol && ep.Port != 0 {
				ports++
			}
		}
		if ports == 0 {
			continue
		}
		for i := range sl.Endpoints {
			e := &sl.Endpoints[i]
			if !e.Ready && !svc.PublishNotReady && !(e.Serving && e.Terminating) {
				continue
			}
			for _, a := range e.Addrs {
				if a.IsValid() && c.Carried(a) && cluster.Family(a) == fam {
					if n += ports; e.Node == c.Local.Node {
						n += ports
					}
				}
			}
		}
	}
	return n
}

// maglevSlots is how many slots the table of a Service port with some backends has
// (internal/maglev).
func maglevSlots(backends int) int {
	switch {
	case backends == 0:
		return 0
	case backends <= 10:
		return 1021
	case backends <= 100:
		return 10007
	case backends <= 1000:
		return 100003
	}
	return 655373
}
