// SPDX-License-Identifier: Apache-2.0

package model

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
)

// Shared keeps one of the equal values that many pods have: their labels, container ports, and the
// names of their namespace, node and service account. A hundred thousand pods come from some
// thousand templates, and each object is decoded with strings and maps of its own. It forgets what
// is not asked for any more; what it has handed out stays as it is. The zero value is ready. It is
// for one goroutine.
type Shared struct {
	texts  generations[string, string]
	labels generations[uint64, map[string]string]
	ports  generations[uint64, []PodPort]
}

// sharedMost is how much the values of a kind take in a generation, some bytes for what they are in
// included. More that differ are not shared as well as they could be.
const sharedMost = 4 << 20

// sharedEach is what a string takes in addition to its own bytes, in a map or a list and in the
// cache.
const sharedEach = 64

// sharedSeed makes the places of values unknown to those who write the objects.
var sharedSeed = maphash.MakeSeed()

// Text returns a string that is equal to t.
func (s *Shared) Text(t string) string {
	if t == "" {
		return ""
	}
	if have, ok := s.texts.get(t); ok {
		return have
	}
	t = strings.Clone(t) // it may be a part of something large
	s.texts.put(t, t, sharedEach+len(t))
	return t
}

// Pod makes a pod that nobody else knows yet share what others have.
func (s *Shared) Pod(p *Pod) {
	p.Name.Namespace, p.Node, p.ServiceAccount = s.Text(p.Name.Namespace), s.Text(p.Node), s.Text(p.ServiceAccount)
	p.Labels, p.Ports = s.labelsLike(p.Labels), s.portsLike(p.Ports)
}

func (s *Shared) labelsLike(m map[string]string) map[string]string {
	if len(m) == 0 {
		return m
	}
	var place uint64
	for k, v := range m {
		place += maphash.Comparable(sharedSeed, [2]string{k, v}) // in no order
	}
	if have, ok := s.labels.get(place); ok && maps.Equal(have, m) {
		return have
	}
	own, size := make(map[string]string, len(m)), 2*sharedEach
	for k, v := range m {
		own[s.Text(k)] = s.Text(v)
		size += sharedEach + len(k) + len(v)
	}
	s.labels.put(place, own, size)
	return own
}

func (s *Shared) portsLike(list []PodPort) []PodPort {
	if len(list) == 0 {
		return list
	}
	var place uint64
	for i := range list {
		place = place*31 + maphash.Comparable(sharedSeed, list[i])
	}
	if have, ok := s.ports.get(place); ok && slices.Equal(have, list) {
		return have
	}
	own, size := slices.Clip(slices.Clone(list)), 2*sharedEach
	for i := range own {
		own[i].Name = s.Text(own[i].Name)
		size += sharedEach + len(own[i].Name)
	}
	s.ports.put(place, own, size)
	return own
}

// generations is a bounded cache: what is asked for while a generation fills up is in the next one.
type generations[K comparable, V any] struct {
	young, old map[K]sized[V]
	size       int // of the young, bytes
}

type sized[V any] struct {
	value V
	size  int
}

func (g *generations[K, V]) get(k K) (V, bool) {
	if v, ok := g.young[k]; ok {
		return v.value, true
	}
	v, ok := g.old[k]
	if ok {
		g.put(k, v.value, v.size)
	}
	return v.value, ok
}

// put keeps a value, unless it is so large that it would take the place of many.
func (g *generations[K, V]) put(k K, v V, size int) {
	if size > sharedMost/16 {
		return
	}
	if g.young == nil || g.size+size > sharedMost {
		g.old, g.young, g.size = g.young, map[K]sized[V]{}, 0
	}
	g.young[k] = sized[V]{v, size}
	g.size += size
}
