// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// filler makes random changes by reflection: what is added to the model is in them.
type filler struct {
	*rand.Rand
	full bool // nothing is zero
}

var (
	addrType     = reflect.TypeFor[netip.Addr]()
	prefixType   = reflect.TypeFor[netip.Prefix]()
	linkType     = reflect.TypeFor[[6]byte]()
	actionType   = reflect.TypeFor[model.Action]()
	operatorType = reflect.TypeFor[model.Operator]()
	nameType     = reflect.TypeFor[model.Name]()
	hintsType    = reflect.TypeFor[*model.EndpointHints]()
)

func (f *filler) addr() netip.Addr {
	if f.IntN(2) == 0 {
		return netip.AddrFrom4([4]byte{10, byte(f.Uint32()), byte(f.Uint32()), byte(f.Uint32())})
	}
	return netip.AddrFrom16([16]byte{0xfd, 1: byte(f.Uint32()), 15: byte(f.Uint32())})
}

func (f *filler) text() string { return fmt.Sprintf("t-%d", f.IntN(200)) }

// value fills one value; field is its name in the structure that it is in.
func (f *filler) value(t testing.TB, v reflect.Value, field string) {
	t.Helper()
	if !f.full && v.Type() != operatorType && f.IntN(3) == 0 {
		return // zero
	}
	switch v.Type() {
	case addrType:
		v.Set(reflect.ValueOf(f.addr()))
		return
	case prefixType:
		a := f.addr()
		v.Set(reflect.ValueOf(netip.PrefixFrom(a, f.IntN(a.BitLen()+1))))
		return
	case linkType:
		v.Set(reflect.ValueOf([6]byte{2, 5: byte(f.Uint32())}))
		return
	case actionType:
		v.SetUint(uint64(model.Deny) + f.Uint64N(uint64(model.Log-model.Deny+1)))
		return
	case operatorType:
		v.SetString(string([]model.Operator{model.In, model.NotIn, model.Exists, model.DoesNotExist}[f.IntN(4)]))
		return
	case hintsType: // those for nobody are none
		h := &model.EndpointHints{}
		f.fields(t, reflect.ValueOf(h).Elem())
		v.Set(reflect.ValueOf(model.HintsFor(h.Zones, h.Nodes)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(f.text())
		if field == "UID" && f.IntN(2) == 0 {
			v.SetString(uuid(f.Rand))
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(f.Uint64() | 1))
	case reflect.Uint8:
		if v.SetUint(1 + f.Uint64N(255)); field == "IPVersion" {
			v.SetUint(4 + 2*f.Uint64N(2))
		}
	case reflect.Uint16:
		v.SetUint(1 + f.Uint64N(math.MaxUint16))
	case reflect.Uint32:
		v.SetUint(1 + f.Uint64N(math.MaxUint32))
	case reflect.Uint64:
		v.SetUint(f.Uint64() | 1)
	case reflect.Float64:
		v.SetFloat([]float64{1, -2.5, 1e300, math.Inf(1), math.Inf(-1)}[f.IntN(5)])
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fields(t, v.Elem())
	case reflect.Struct:
		f.fields(t, v)
	case reflect.Array:
		for i := range v.Len() {
			f.element(t, v.Index(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1+f.IntN(3), 3))
		for i := range v.Len() {
			f.element(t, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 1 + f.IntN(3) {
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.element(t, k)
			f.element(t, e)
			v.SetMapIndex(k, e)
		}
	default:
		t.Fatalf("%s is a %s, of which this test knows nothing", field, v.Type())
	}
}

// element fills what a list or a map holds, structures by their fields.
func (f *filler) element(t testing.TB, v reflect.Value) {
	if v.Kind() == reflect.Struct && v.Type() != addrType && v.Type() != prefixType {
		f.fields(t, v)
		return
	}
	f.value(t, v, "")
}

func (f *filler) fields(t testing.TB, v reflect.Value) {
	for i := range v.NumField() {
		f.value(t, v.Field(i), v.Type().Field(i).Name)
	}
}

// place gives a policy what none goes without.
func (f *filler) place(p *model.Policy) {
	p.Kind, p.Name.Name, p.Tier = f.text(), f.text(), f.text()
}

// key is what names an object in its map; objects without a name get one.
func (f *filler) key(t testing.TB, object reflect.Value, of reflect.Type) reflect.Value {
	t.Helper()
	switch o := object.Interface().(type) {
	case *model.Policy:
		f.place(o)
		return reflect.ValueOf(o.ID())
	case *model.StagedPolicy:
		f.place(&o.Policy)
		return reflect.ValueOf(o.Policy.ID())
	case *model.Block:
		o.CIDR = netip.PrefixFrom(f.addr(), 28)
		return reflect.ValueOf(o.CIDR)
	}
	name := object.Elem().FieldByName("Name")
	switch {
	case name.IsValid() && name.Type() == nameType && of == nameType:
		name.FieldByName("Name").SetString(f.text())
	case name.IsValid() && name.Kind() == reflect.String && of.Kind() == reflect.String:
		name.SetString(f.text())
	default:
		t.Fatalf("this test knows no key of %s", object.Type())
	}
	return name
}

// changes makes up to n objects of each kind.
func (f *filler) changes(t testing.TB, n int) *model.Changes {
	ch := &model.Changes{}
	v := reflect.ValueOf(ch).Elem()
	for i := range v.NumField() {
		field := v.Field(i)
		if field.Kind() != reflect.Map {
			f.value(t, field, v.Type().Field(i).Name)
			continue
		}
		if n > 0 {
			field.Set(reflect.MakeMap(field.Type()))
		}
		for range n {
			o := reflect.New(field.Type().Elem().Elem())
			f.fields(t, o.Elem())
			k := f.key(t, o, field.Type().Key())
			if !f.full && f.IntN(4) == 0 {
				o = reflect.Zero(o.Type()) // gone
			}
			field.SetMapIndex(k, o)
		}
	}
	if !ch.ReservedChanged {
		ch.Reserved = nil
	}
	if !ch.ServiceCIDRsChanged {
		ch.ServiceCIDRs = nil
	}
	return ch
}

func uuid(r *rand.Rand) string {
	var b [16]byte
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// merge adds the changes of a later message.
func merge(into, more *model.Changes) {
	mergeMap(&into.Namespaces, more.Namespaces)
	mergeMap(&into.Pods, more.Pods)
	mergeMap(&into.Nodes, more.Nodes)
	mergeMap(&into.Services, more.Services)
	mergeMap(&into.Slices, more.Slices)
	mergeMap(&into.Policies, more.Policies)
	mergeMap(&into.Staged, more.Staged)
	mergeMap(&into.Tiers, more.Tiers)
	mergeMap(&into.NetworkSets, more.NetworkSets)
	mergeMap(&into.ServiceAccounts, more.ServiceAccounts)
	mergeMap(&into.HostEndpoints, more.HostEndpoints)
	mergeMap(&into.Pools, more.Pools)
	mergeMap(&into.Blocks, more.Blocks)
	mergeMap(&into.BGPConfigs, more.BGPConfigs)
	mergeMap(&into.BGPPeers, more.BGPPeers)
	mergeMap(&into.BGPFilters, more.BGPFilters)
	mergeMap(&into.EgressPolicies, more.EgressPolicies)
	if more.ServiceCIDRsChanged {
		into.ServiceCIDRs, into.ServiceCIDRsChanged = more.ServiceCIDRs, true
	}
	if more.ReservedChanged {
		into.Reserved, into.ReservedChanged = more.Reserved, true
	}
}

func mergeMap[K comparable, V any](into *map[K]*V, more map[K]*V) {
	if *into == nil && len(more) > 0 {
		*into = map[K]*V{}
	}
	maps.Copy(*into, more)
}
