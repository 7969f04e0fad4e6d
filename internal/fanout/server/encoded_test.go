// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
)

// TestEncodedOnce holds that changes of the same values are encoded once, that no others get their
// messages, and that no more is kept than is bounded.
func TestEncodedOnce(t *testing.T) {
	t.Parallel()
	e, now := newEncodings(), time.Now()
	c := fleet(3, 4)
	pods := c.Pods.ByName()
	of := func(n int, gone bool) *model.Changes {
		ch := &model.Changes{Pods: map[model.Name]*model.Pod{}}
		for name, p := range pods {
			if len(ch.Pods) == n {
				break
			}
			if ch.Pods[name] = p; gone {
				ch.Pods[name] = nil
			}
		}
		return ch
	}
	all := of(len(pods), false)
	first, err := e.of(all, now)
	if err != nil {
		t.Fatal(err)
	}
	again, err := e.of(of(len(pods), false), now)
	if err != nil || &again[0][0] != &first[0][0] {
		t.Errorf("the same changes were encoded twice (%v)", err)
	}
	other := of(len(pods), false)
	for name, p := range other.Pods { // as others see it
		copied := *p
		other.Pods[name] = &copied
		break
	}
	for what, ch := range map[string]*model.Changes{"fewer": of(3, false), "gone": of(len(pods), true), "other values": other,
		"another kind": {Namespaces: c.Namespaces}, "with ranges": {Pods: all.Pods, ServiceCIDRsChanged: true}} {
		got, err := e.of(ch, now)
		want, _ := wire.Encoder{}.Marshal(ch)
		if err != nil || !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) || &got[0][0] == &first[0][0] {
			t.Errorf("%s: got the messages of other changes (%v)", what, err)
		}
	}
	many := &model.Changes{Policies: map[model.PolicyID]*model.Policy{}}
	for i := range morePolicies + 1 {
		p := allow(fmt.Sprint("n", i), "a", 80)
		many.Policies[p.ID()] = p
	}
	before := len(e.known)
	got, err := e.of(many, now)
	if want, _ := (wire.Encoder{}).Marshal(many); err != nil || !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) || len(e.known) != before {
		t.Errorf("of many policies, which each node gets others of, %d messages are kept, %v", len(e.known)-before, err)
	}
	for i := range 3 * mostEncoded {
		ns := &model.Namespace{Name: fmt.Sprint("n", i)}
		if _, err := e.of(&model.Changes{Namespaces: map[string]*model.Namespace{ns.Name: ns}}, now.Add(time.Duration(i)*10*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	if len(e.known) > mostEncoded {
		t.Errorf("%d are kept", len(e.known))
	}
}

// TestKeyHasAllKinds holds that every kind of object counts in the key.
func TestKeyHasAllKinds(t *testing.T) {
	t.Parallel()
	e := newEncodings()
	kinds := reflect.TypeFor[model.Changes]()
	maps := 0
	for i := range kinds.NumField() {
		f := kinds.Field(i)
		if f.Type.Kind() != reflect.Map {
			continue
		}
		maps++
		ch := &model.Changes{}
		m := reflect.MakeMap(f.Type)
		m.SetMapIndex(reflect.New(f.Type.Key()).Elem(), reflect.New(f.Type.Elem().Elem()))
		reflect.ValueOf(ch).Elem().Field(i).Set(m)
		if e.key(ch) == e.key(&model.Changes{}) {
			t.Errorf("%s do not count", f.Name)
		}
	}
	if maps < 15 {
		t.Errorf("%d kinds", maps)
	}
}
