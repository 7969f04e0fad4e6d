// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
)

// hooks are those at which packets arrive, by their names.
var hooks = map[string]sim.Hook{}

func init() {
	for _, h := range []sim.Hook{sim.FromWorkload, sim.ToWorkload, sim.FromUplink, sim.ToUplink, sim.FromTunnel} {
		hooks[h.String()] = h
	}
}

// write writes a round as a txtar archive: the comment, a file for each cluster (the tables of
// model.Cluster), and the file round, whose lines are
//
//	mtu IFINDEX BYTES      the MTU of an interface
//	own ADDR               the kernel has this address, and maybe no table knows it
//	aside PREFIX           this network is on the link of a second uplink
//	cluster FILE           the cluster becomes this one
//	advance SECONDS        time passes
//	in HOOK IFINDEX [marked] [entered=IFINDEX] [source=ADDR vni=N] FRAME
//	                       a packet arrives; the frame in hexadecimal digits, and in a comment as text
func (r *round) write(path, comment string) error {
	a := &txtar.Archive{}
	for line := range strings.Lines(comment) {
		a.Comment = append(a.Comment, "# "+strings.TrimSpace(line)+"\n"...)
	}
	var lines []string
	for _, i := range slices.Sorted(maps.Keys(r.mtus)) {
		lines = append(lines, fmt.Sprintf("mtu %d %d", i, r.mtus[i]))
	}
	for _, a := range r.own {
		lines = append(lines, "own "+a.String())
	}
	for _, p := range r.aside {
		lines = append(lines, "aside "+p.String())
	}
	for _, e := range r.events {
		switch {
		case e.cluster != nil:
			b, err := marshalCluster(e.cluster)
			if err != nil {
				return err
			}
			name := fmt.Sprintf("cluster-%d.yaml", len(a.Files)+1)
			a.Files = append(a.Files, txtar.File{Name: name, Data: b})
			lines = append(lines, "cluster "+name)
		case e.seconds > 0:
			lines = append(lines, fmt.Sprintf("advance %d", e.seconds))
		default:
			frame, err := e.in.Packet.Marshal()
			if err != nil {
				return err
			}
			in := fmt.Sprintf("in %s %d", e.in.Hook, e.in.IfIndex)
			if e.in.Marked {
				in += " marked"
			}
			if e.in.Entered != 0 {
				in += fmt.Sprintf(" entered=%d", e.in.Entered)
			}
			if e.in.Source.IsValid() {
				in += " source=" + e.in.Source.String()
			}
			lines = append(lines, fmt.Sprintf("# %s", e.in.Packet), fmt.Sprintf("%s vni=%d %x", in, e.in.VNI, frame))
		}
	}
	a.Files = append(a.Files, txtar.File{Name: "round", Data: []byte(strings.Join(lines, "\n") + "\n")})
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, txtar.Format(a), 0o644)
}

// readRound reads what write wrote.
func readRound(path string) (*round, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, f := range txtar.Parse(data).Files {
		files[f.Name] = f.Data
	}
	r := &round{mtus: map[int]int{}}
	for line := range strings.Lines(string(files["round"])) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if err := r.line(words, files); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, strings.TrimSpace(line), err)
		}
	}
	if len(r.events) == 0 || r.events[0].cluster == nil {
		return nil, fmt.Errorf("%s: a round begins with a cluster", path)
	}
	return r, nil
}

func (r *round) line(words []string, files map[string][]byte) error {
	var e event
	switch {
	case words[0] == "mtu" && len(words) == 3:
		i, err1 := strconv.Atoi(words[1])
		n, err2 := strconv.Atoi(words[2])
		r.mtus[i] = n
		return errors.Join(err1, err2)
	case words[0] == "own" && len(words) == 2:
		a, err := netip.ParseAddr(words[1])
		r.own = append(r.own, a)
		return err
	case words[0] == "aside" && len(words) == 2:
		p, err := netip.ParsePrefix(words[1])
		r.aside = append(r.aside, p)
		return err
	case words[0] == "cluster" && len(words) == 2 && files[words[1]] != nil:
		var err error
		if e.cluster, err = unmarshalCluster(files[words[1]]); err != nil {
			return err
		}
	case words[0] == "advance" && len(words) == 2:
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return err
		}
		e.seconds = n
	case words[0] == "in" && len(words) >= 4:
		in, err := arrivalOf(words[1:])
		if err != nil {
			return err
		}
		e.in = in
	default:
		return errors.New("not a line of a round")
	}
	r.events = append(r.events, e)
	return nil
}

func arrivalOf(words []string) (*sim.In, error) {
	hook, ok := hooks[words[0]]
	index, err := strconv.Atoi(words[1])
	if !ok || err != nil {
		return nil, errors.New("no hook and no interface")
	}
	in := &sim.In{Hook: hook, IfIndex: index}
	for _, w := range words[2 : len(words)-1] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "marked":
			in.Marked = true
		case "entered":
			in.Entered, err = strconv.Atoi(value)
		case "source":
			in.Source, err = netip.ParseAddr(value)
		case "vni":
			var n uint64
			n, err = strconv.ParseUint(value, 10, 32)
			in.VNI = uint32(n)
		default:
			err = fmt.Errorf("%q means nothing", w)
		}
		if err != nil {
			return nil, err
		}
	}
	frame, err := hex.DecodeString(words[len(words)-1])
	if err != nil {
		return nil, err
	}
	in.Packet, err = packet.Unmarshal(frame)
	return in, err
}

// tables is a cluster as text: JSON has no keys with several fields, and no infinite numbers.
type tables struct {
	Namespaces      []*model.Namespace
	Pods            []*model.Pod
	Nodes           []*model.Node
	Services        []*model.Service
	Slices          []*model.EndpointSlice
	Policies        []ordered[model.Policy]
	Staged          []ordered[model.StagedPolicy]
	Tiers           []ordered[model.Tier]
	NetworkSets     []*model.NetworkSet
	ServiceAccounts []*model.ServiceAccount
	HostEndpoints   []*model.HostEndpoint
	Pools           []*model.Pool
	Blocks          []*model.Block
	BGPPeers        []*model.BGPPeer
	ServiceCIDRs    []netip.Prefix
	Reservations    []netip.Prefix
	Settings        model.Settings
	Local           model.Local
}

// ordered is an object with its order next to it, as text.
type ordered[T any] struct {
	At     string
	Object *T
}

// order is where an object has its order, nil when it has none.
func order(object any) *float64 {
	switch o := object.(type) {
	case *model.Policy:
		return &o.Order
	case *model.StagedPolicy:
		return &o.Policy.Order
	case *model.Tier:
		return &o.Order
	}
	return nil
}

func withOrder[T any](objects []*T) []ordered[T] {
	var out []ordered[T]
	for _, o := range objects {
		o := *o
		at := order(&o)
		text := strconv.FormatFloat(*at, 'g', -1, 64)
		*at = 0
		out = append(out, ordered[T]{text, &o})
	}
	return out
}

// values are those of a table, in an order that is always the same.
func values[K comparable, V any](m map[K]V) []V {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b K) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	var out []V
	for _, k := range keys {
		out = append(out, m[k])
	}
	return out
}

func marshalCluster(c *model.Cluster) ([]byte, error) {
	b, err := json.Marshal(tables{Namespaces: values(c.Namespaces), Pods: values(c.Pods.ByName()), Nodes: values(c.Nodes), Services: values(c.Services),
		Slices: values(c.Slices), Policies: withOrder(values(c.Policies)), Staged: withOrder(values(c.Staged)), Tiers: withOrder(values(c.Tiers)),
		NetworkSets: values(c.NetworkSets), ServiceAccounts: values(c.ServiceAccounts), HostEndpoints: values(c.HostEndpoints), Pools: values(c.Pools), Blocks: values(c.Blocks), BGPPeers: values(c.BGPPeers),
		ServiceCIDRs: c.ServiceCIDRs, Reservations: c.Reservations, Settings: c.Settings, Local: c.Local})
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		return nil, err
	}
	withoutZeros(fields)
	return yaml.Marshal(fields)
}

// withoutZeros removes what is there without being said.
func withoutZeros(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if x == nil || x == false || x == 0.0 || x == "" {
				delete(v, k)
			} else {
				withoutZeros(x)
			}
		}
	case []any:
		for _, x := range v {
			withoutZeros(x)
		}
	}
}

func unmarshalCluster(data []byte) (*model.Cluster, error) {
	var t tables
	if err := yaml.UnmarshalStrict(data, &t); err != nil {
		return nil, err
	}
	c := model.NewCluster()
	c.ServiceCIDRs, c.Reservations, c.Settings, c.Local = t.ServiceCIDRs, t.Reservations, t.Settings, t.Local
	if c.Local.Endpoints == nil {
		c.Local.Endpoints = map[netip.Addr]*model.LocalEndpoint{}
	}
	fill(c.Namespaces, t.Namespaces, func(o *model.Namespace) string { return o.Name })
	for _, p := range t.Pods {
		c.Pods.Put(p)
	}
	fill(c.Nodes, t.Nodes, func(o *model.Node) string { return o.Name })
	fill(c.Services, t.Services, func(o *model.Service) model.Name { return o.Name })
	fill(c.Slices, t.Slices, func(o *model.EndpointSlice) model.Name { return o.Name })
	fill(c.NetworkSets, t.NetworkSets, func(o *model.NetworkSet) model.Name { return o.Name })
	fill(c.ServiceAccounts, t.ServiceAccounts, func(o *model.ServiceAccount) model.Name { return o.Name })
	fill(c.HostEndpoints, t.HostEndpoints, func(o *model.HostEndpoint) string { return o.Name })
	fill(c.Pools, t.Pools, func(o *model.Pool) string { return o.Name })
	fill(c.Blocks, t.Blocks, func(o *model.Block) netip.Prefix { return o.CIDR })
	fill(c.BGPPeers, t.BGPPeers, func(o *model.BGPPeer) string { return o.Name })
	return c, errors.Join(
		fillOrdered(c.Policies, t.Policies, (*model.Policy).ID),
		fillOrdered(c.Staged, t.Staged, func(o *model.StagedPolicy) model.PolicyID { return o.Policy.ID() }),
		fillOrdered(c.Tiers, t.Tiers, func(o *model.Tier) string { return o.Name }))
}

func fill[K comparable, V any](m map[K]*V, objects []*V, key func(*V) K) {
	for _, o := range objects {
		m[key(o)] = o
	}
}

func fillOrdered[K comparable, V any](m map[K]*V, objects []ordered[V], key func(*V) K) error {
	for _, o := range objects {
		at, err := strconv.ParseFloat(o.At, 64)
		if err != nil {
			return err
		}
		*order(o.Object) = at
		m[key(o.Object)] = o.Object
	}
	return nil
}
