// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch/parse"
)

// store receives the objects of one resource from a reflector, converts each as it comes and lets
// go of it. All methods are called by the reflector's goroutine.
type store[O metav1.Object, V any] struct {
	w *Watcher
	k kind[O, V]
	// last has every object that exists; nil for one that is not carried.
	last   map[model.Name]*V
	shared model.Shared
	filled atomic.Bool // everything was read once
}

// converted takes an object's place while a reflector collects the first ones. Its metadata are the
// name alone.
type converted[V any] struct {
	metav1.ObjectMeta
	value *V
	extra any
	found []weirv1.Problem
}

var _ cache.TransformingStore = (*store[*metav1.ObjectMeta, int])(nil)

// addSource makes the source of one resource, and returns where its objects go.
func addSource[O metav1.Object, V any](w *Watcher, p *patient, example runtime.Object, optional bool, k kind[O, V]) *store[O, V] {
	s := &store[O, V]{w: w, k: k, last: map[model.Name]*V{}}
	r := cache.NewReflectorWithOptions(p.listWatch(), example, s, cache.ReflectorOptions{Name: p.resource, TypeDescription: p.resource})
	w.sources = append(w.sources, &source{resource: p.resource, optional: optional, run: func(ctx context.Context) { r.RunWithContext(ctx) }, handled: s.filled.Load,
		definition: p.definition})
	return s
}

// Transformer makes a reflector that streams its first objects (KEP-3157) collect what they are
// converted to.
func (s *store[O, V]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.convert(obj) }
}

func (s *store[O, V]) convert(obj any) (*converted[V], error) {
	if c, ok := obj.(*converted[V]); ok {
		return c, nil
	}
	obj, err := strip(obj)
	if err != nil {
		return nil, err
	}
	o, ok := obj.(O)
	if !ok {
		return nil, fmt.Errorf("watch %s: got a %T", s.k.resource, obj)
	}
	c := &converted[V]{ObjectMeta: metav1.ObjectMeta{Namespace: s.shared.Text(o.GetNamespace()), Name: o.GetName()}}
	if c.value, c.found = s.k.convert(o); c.value != nil && s.k.share != nil {
		s.k.share(&s.shared, c.value)
	}
	if s.k.extra != nil {
		c.extra = s.k.extra(o, c.value, c.found)
	}
	return c, nil
}

// Add implements cache.ReflectorStore.
func (s *store[O, V]) Add(obj any) error {
	c, err := s.convert(obj)
	if err != nil {
		return err
	}
	s.set(c)
	return nil
}

// Update implements cache.ReflectorStore.
func (s *store[O, V]) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *store[O, V]) Delete(obj any) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("watch %s: got a %T", s.k.resource, obj)
	}
	s.gone(parse.NameOf(o))
	return nil
}

// Replace implements cache.ReflectorStore: the objects are all that there are. The list is ours.
func (s *store[O, V]) Replace(list []any, _ string) error {
	there := make(map[model.Name]struct{}, len(list))
	for i, obj := range list {
		list[i] = nil
		c, err := s.convert(obj)
		if err != nil {
			return err
		}
		there[parse.NameOf(c)] = struct{}{}
		s.set(c)
	}
	for name := range s.last {
		if _, ok := there[name]; !ok {
			s.gone(name)
		}
	}
	s.filled.Store(true)
	if s.k.filled != nil {
		s.k.filled()
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *store[O, V]) Resync() error { return nil }

func (s *store[O, V]) set(c *converted[V]) {
	name := parse.NameOf(c)
	if s.k.keep != nil {
		s.k.keep(name, c.extra)
	}
	s.note(name, c.extra, c.value, c.found)
	s.last[name] = c.value
}

func (s *store[O, V]) gone(name model.Name) {
	if s.k.keep != nil {
		s.k.keep(name, nil)
	}
	s.note(name, nil, nil, nil)
	delete(s.last, name)
}

// note records what differs from what was known.
func (s *store[O, V]) note(name model.Name, extra any, now *V, found []weirv1.Problem) {
	before := s.last[name]
	same := before == nil && now == nil || before != nil && now != nil && reflect.DeepEqual(before, now)
	object := s.k.object + " " + name.String()
	s.w.mu.Lock()
	s.w.problems.set(object, found)
	news := s.w.problems.changed
	s.w.mu.Unlock()
	if same && !news {
		return
	}
	s.w.note(func(b *Batch) {
		if !same {
			s.k.record(b, name, extra, now, before)
		}
	})
}

// remembered are values by name, for readers of other goroutines.
type remembered[E any] struct {
	mu sync.RWMutex
	m  map[model.Name]*E
}

// keep stores an *E, or with nil removes it.
func (r *remembered[E]) keep(name model.Name, extra any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if extra == nil {
		delete(r.m, name)
		return
	}
	if r.m == nil {
		r.m = map[model.Name]*E{}
	}
	r.m[name] = extra.(*E)
}

func (r *remembered[E]) get(name model.Name) *E {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.m[name]
}
